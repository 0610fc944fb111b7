"""Processes of `tidegate jobs run` beside a gateway that runs no jobs itself: real Redis, RabbitMQ and Triton."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from control_plane.app.stores import open_usage_store
from control_plane.metering.domain.usage import EVERY_DAY, Usage
from perf.servers.rabbitmq import rabbitmq_server
from tests.e2e.conftest import MODELS, Start
from tests.e2e.jobs.job_calls import ask, ended, result, seconds, state, submit
from tests.e2e.jobs.job_workers import worker
from tests.e2e.tidegate import COMPLETE, LONG_S, wait_for
from tests.redis_server import redis_server

JOBS, LONG_JOB_S = 10, 8.0


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """What gateway and workers share, in the environment of both; the URL of the Redis."""
    with redis_server(tmp_path) as redis, rabbitmq_server(tmp_path) as broker:
        monkeypatch.setenv("TIDEGATE_JOBS_URL", broker.url)
        monkeypatch.setenv("TIDEGATE_JOBS_SPOOL", str(tmp_path / "spool"))
        yield redis.url


def usage_in(state_url: str) -> Usage:
    async def read() -> Usage:
        store = await open_usage_store(SecretStr(state_url), Path())
        try:
            return sum((usage for _, usage in await store.totals(since_day=EVERY_DAY[0], until_day=EVERY_DAY[1])), Usage())
        finally:
            await store.close()

    return asyncio.run(read())


def test_of_two_workers_one_is_killed_and_nothing_is_lost_or_done_twice(
    start: Start, tmp_path: Path, shared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TIDEGATE_JOBS_RUN", "false")
        gateway = start(tmp_path / "gateway", "--model-repository", str(MODELS), COMPLETE, "--load", "slow", "--state-url", shared)
    first = submit(gateway, "slow", seconds(LONG_JOB_S))
    assert ask(gateway, "GET", f"/v2/jobs/{first}", Prefer="wait=2").json["state"] == "queued", "this gateway runs none itself"

    killed = worker(gateway, shared, tmp_path / "one.log")
    other: subprocess.Popen[bytes] | None = None
    try:
        wait_for(lambda: state(gateway, first) == "running", what="the first job")
        made = [first, *(submit(gateway, "slow", seconds(0.2 * (1 + number % 3))) for number in range(JOBS))]
        killed.kill()
        killed.wait(LONG_S)
        other = worker(gateway, shared, tmp_path / "two.log")

        found = [ended(gateway, job) for job in made]

        assert {each["state"] for each in found} == {"succeeded"}
        assert found[0]["attempts"] == 2, "the killed worker's counts"
        for job in made:
            assert json.loads(result(gateway, job).body)["outputs"][0]["name"] == "SLEPT"
        wait_for(lambda: usage_in(shared).requests >= len(made), what="the charges")
        assert usage_in(shared).requests == len(made)
        other.terminate()
        assert other.wait(LONG_S) == 0, (tmp_path / "two.log").read_text()
    finally:
        for each in (killed, other):
            if each is not None and each.poll() is None:
                each.kill()
                each.wait(LONG_S)
