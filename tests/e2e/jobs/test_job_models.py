"""Jobs for more models than there is memory for: those whose model is loaded go first."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.conftest import Start
from tests.e2e.fleets import body, shown, write_models
from tests.e2e.jobs.job_calls import ended, submit
from tests.e2e.jobs.job_workers import worker
from tests.e2e.tidegate import COMPLETE, LONG_S, Tidegate
from tests.redis_server import redis_server

MODELS = tuple(f"m{number}" for number in range(5))
ROUNDS = 4


@pytest.mark.parametrize("words", [pytest.param((), id="one-process"), pytest.param(("--workers", "2"), id="two-workers")])
def test_mixed_for_five_models_they_load_each_hardly_more_than_once(start: Start, tmp_path: Path, words: tuple[str, ...]) -> None:
    """Two fit. In the order in which they came each job would need a load, 20 in all."""
    gateway = fleet(start, tmp_path, *words)
    all_succeed(gateway, [submit(gateway, model, body()) for _ in range(ROUNDS) for model in MODELS])
    assert sum(loads(gateway).values()) <= 2 * len(MODELS), loads(gateway)


def test_so_do_processes_of_their_own_which_ask_the_gateway_what_is_loaded(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with redis_server(tmp_path) as redis:
        monkeypatch.setenv("TIDEGATE_JOBS_SPOOL", str(tmp_path / "spool"))
        with monkeypatch.context() as patch:
            patch.setenv("TIDEGATE_JOBS_RUN", "false")
            gateway = fleet(start, tmp_path, "--state-url", redis.url)
        jobs = [submit(gateway, model, body()) for _ in range(ROUNDS) for model in MODELS]
        running = worker(gateway, redis.url, tmp_path / "worker.log")
        try:
            all_succeed(gateway, jobs)
        finally:
            running.terminate()
            running.wait(LONG_S)
    assert sum(loads(gateway).values()) <= 2 * len(MODELS), loads(gateway)


def fleet(start: Start, folder: Path, *words: str) -> Tidegate:
    write_models(folder / "models", MODELS)
    return start(folder / "state", "--model-repository", str(folder / "models"), COMPLETE, "--memory-budget", "50MiB", *words)


def all_succeed(gateway: Tidegate, jobs: list[str]) -> None:
    assert Counter(ended(gateway, job)["state"] for job in jobs) == {"succeeded": len(jobs)}


def loads(gateway: Tidegate) -> Counter[str]:
    return Counter(event["model"] for event in shown(gateway)["events"] if event["kind"] == "loaded")
