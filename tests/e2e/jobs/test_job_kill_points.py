"""A real process killed with SIGKILL right after a step of a job or a batch that Redis or RabbitMQ has a part in, and started again.

After every step, those on files among them, processes die in tests/unit/jobs/test_kill_matrix.py and in that of tests/unit/batches.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from pydantic import SecretStr

from control_plane.app.stores import open_job_store, open_usage_store
from control_plane.jobs.adapters.folder_spool import FolderSpool
from control_plane.jobs.domain.job import Job, JobState
from control_plane.metering.domain.usage import EVERY_DAY, Usage
from perf.servers.rabbitmq import RabbitmqServer, rabbitmq_server
from tests.e2e.forks import PROCESSES
from tests.e2e.jobs import mortal_jobs
from tests.redis_server import RedisServer, redis_server
from tests.unit.batches.world import CHUNKS, OK, WRONG
from tests.unit.jobs.world import WANTED

STEPS = {
    "add": "a job is accepted: its record",
    "publish": "its ticket",
    "add_batch": "a batch is accepted",
    "claim": "a job is claimed",
    "replace": "a job ends",
    "ack": "a ticket is acknowledged",
    "add_all": "a job is charged",
    "end": "a batch ends",
}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RedisServer, RabbitmqServer]]:
    with redis_server(tmp_path_factory.mktemp("redis")) as redis, rabbitmq_server(tmp_path_factory.mktemp("broker")) as broker:
        yield redis, broker


def lived(folder: Path, *words: str) -> tuple[int | None, str]:
    """How a process ended, None for not at all, and what it said on standard error."""
    process = PROCESSES.Process(target=mortal_jobs.live, args=(words, folder / "errors.txt"))
    process.start()
    process.join(120)
    status = process.exitcode
    process.kill()
    process.join()
    process.close()
    return status, (folder / "errors.txt").read_text()[-2000:]


@pytest.mark.parametrize(("step", "when"), [("add", "before"), *((step, "after") for step in STEPS)])
def test_what_was_accepted_is_settled_once(tmp_path: Path, servers: tuple[RedisServer, RabbitmqServer], step: str, when: str) -> None:
    redis, broker = servers
    redis.call("FLUSHALL")
    words = (redis.url, broker.url, str(tmp_path))

    killed, said = lived(tmp_path, *words, step, when)
    assert killed == -signal.SIGKILL, f"it was to die {when} {STEPS[step]}: {said}"
    again, said = lived(tmp_path, *words)
    assert again == 0, said

    jobs, usage, results = asyncio.run(found(redis.url, tmp_path))
    assert Counter(job.state for job in jobs) == {JobState.SUCCEEDED: 1 + CHUNKS}
    (result,) = (text for job, text in zip(jobs, results, strict=True) if job.idempotency_key == WANTED.idempotency_key)
    assert result.endswith(bytes(WANTED.body))
    answered = [orjson.loads(line)["custom_id"] for path in tmp_path.rglob("content") for line in path.read_bytes().splitlines()]
    assert sorted(answered) == sorted(2 * [*OK, WRONG]), "each line once in the input, and once in the output or the errors"
    assert usage.requests == 1 + len(OK)


async def found(redis_url: str, folder: Path) -> tuple[list[Job], Usage, list[bytes]]:
    store, spool = await open_job_store(SecretStr(redis_url), folder), FolderSpool(folder / "spool")
    charged = await open_usage_store(SecretStr(redis_url), folder)
    try:
        jobs = await store.jobs_of(None, state=None, before="", limit=100)
        totals = await charged.totals(since_day=EVERY_DAY[0], until_day=EVERY_DAY[1])
        return jobs, sum((usage for _, usage in totals), Usage()), [await spool.read(job.result.blob) for job in jobs if job.result]
    finally:
        for each in (spool, charged, store):
            await each.close()
