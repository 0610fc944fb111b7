"""Two Tritons with room for two of six models each, behind two worker processes: they are one gateway, and memory is promised once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from control_plane.admin.client import AdminClient
from tests.e2e.fleets import MODELS, answer_of, ask, loaded, loads, require_within_budget, shown, watching, write_models
from tests.e2e.nodes import EMBEDDED, fleet_on
from tests.e2e.processes import triton_of, workers_of
from tests.e2e.raw_http import exchange, status
from tests.e2e.tidegate import LONG_S, Tidegate, wait_for

WORKERS = 2
CONNECTIONS = 12
"""Callers with a connection each, which the kernel gives to any worker: the chance that one gets none is 1 in 2,000."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tidegate]:
    repository = tmp_path_factory.mktemp("models")
    write_models(repository, (*MODELS, "broken"))
    flags = ("--memory-budget", "50MiB", "--workers", str(WORKERS))
    with fleet_on(EMBEDDED, tmp_path_factory.mktemp("fleet"), *flags, repository=repository) as (running, _):
        yield running
    assert "defect" not in running.said()


def nowhere(fleet: Tidegate) -> str:
    return next(model for model in MODELS if not any(model in models for models in loaded(fleet).values()))


def ask_all(fleet: Tidegate, model: str, **fields: str) -> list[bytes]:
    """Both workers, at once."""
    answers: list[bytes] = []
    threads = [threading.Thread(target=lambda: answers.append(ask(fleet, model, **fields))) for _ in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def test_every_model_is_served_with_one_load_each_and_memory_is_never_promised_twice(fleet: Tidegate) -> None:
    with watching(fleet, require_within_budget):
        for number, model in enumerate(MODELS):
            assert [answer_of(raw) for raw in ask_all(fleet, model)] == [1.0 + number] * CONNECTIONS
    assert loads(fleet) == list(MODELS)


def test_what_only_workers_use_is_kept_by_how_they_use_it(fleet: Tidegate) -> None:
    kept = next(model for models in loaded(fleet).values() for model in sorted(models))
    before = len(loads(fleet))
    for _ in range(10):
        ask_all(fleet, kept)
    wait_for(lambda: rate_of(fleet, kept) > 1, what="its uses to be told")
    model = nowhere(fleet)

    def is_served() -> bool:
        """As long as all that are loaded are used far more it is refused, and on a slow machine that is long after their last use."""
        assert {status(raw) for raw in ask_all(fleet, kept)} == {200}
        return status(ask(fleet, model)) == 200

    wait_for(is_served, what="a place for it")
    assert kept not in loads(fleet)[before:], "it was never unloaded"


def rate_of(fleet: Tidegate, model: str) -> float:
    found: float = next(each for each in shown(fleet)["models"] if each["name"] == model)["uses_per_s"]
    return found


def test_administrators_are_obeyed_whichever_worker_they_reach(fleet: Tidegate) -> None:
    present = next(model for models in loaded(fleet).values() for model in sorted(models))
    assert status(exchange(fleet.port("http"), "POST", f"/v2/repository/models/{present}/unload", timeout_s=LONG_S)) == 200
    assert {status(raw) for raw in ask_all(fleet, present)} == {404}
    assert status(exchange(fleet.port("http"), "POST", f"/v2/repository/models/{present}/load", timeout_s=LONG_S)) == 200
    assert {status(raw) for raw in ask_all(fleet, present)} == {200}
    admin = AdminClient(fleet.endpoints["admin"])
    admin.unload(present)
    wait_for(lambda: {status(raw) for raw in ask_all(fleet, present)} == {404}, what="all to know")
    admin.load(present)


def test_what_fails_to_load_is_said_by_all(fleet: Tidegate) -> None:
    assert status(ask(fleet, "broken", tidegate_timeout_ms="1500")) == 503
    wait_for(lambda: any(event["kind"] == "failed" for event in shown(fleet)["events"]), what="its failure")

    def all_say_why() -> bool:
        answers = ask_all(fleet, "broken", tidegate_timeout_ms="100")
        assert {status(raw) for raw in answers} == {503}
        return all(b"its weights are missing" in raw for raw in answers)

    wait_for(all_say_why, what="all to know")


def test_a_worker_that_is_killed_loses_only_what_it_had_under_way(fleet: Tidegate) -> None:
    model = nowhere(fleet)
    victim = workers_of(fleet)[0]
    before = len(loads(fleet))
    answers: list[bytes] = []

    def ask_one() -> None:
        with contextlib.suppress(OSError, AssertionError, ValueError):  # it was this worker's
            answers.append(ask(fleet, model))

    threads = [threading.Thread(target=ask_one) for _ in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    os.kill(victim, signal.SIGKILL)
    for thread in threads:
        thread.join()
    assert {status(raw) for raw in answers if raw} <= {200}
    assert {status(raw) for raw in ask_all(fleet, model)} == {200}
    assert loads(fleet)[before:] == [model]
    wait_for(lambda: len(workers_of(fleet)) == WORKERS, what="the new worker")
    wait_for(lambda: not in_flight(fleet), what="its report to expire")
    assert {status(raw) for raw in ask_all(fleet, nowhere(fleet))} == {200}


def in_flight(fleet: Tidegate) -> int:
    return sum(replica["in_flight"] for server in shown(fleet)["servers"] for replica in server["replicas"])


def test_when_a_triton_is_killed_the_other_serves_what_it_had(fleet: Tidegate) -> None:
    holder, models = next((name, sorted(models)) for name, models in loaded(fleet).items() if models)
    os.kill(triton_of(fleet, holder), signal.SIGKILL)
    for _ in range(2):
        wait_for(lambda: {status(raw) for raw in ask_all(fleet, models[0])} == {200}, what="answers by all")
    wait_for(lambda: all(server["is_up"] for server in shown(fleet)["servers"]), what="its return")
