"""What the drills of jobs are carried out on: RabbitMQ, Redis, two gateways with a Triton each, and two `tidegate jobs run`."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from control_plane.app.stores import open_state_store
from control_plane.auth.keys import Keys
from control_plane.core.scope import parse_scope
from control_plane.objects.domain.tenant import Tenant
from control_plane.objects.objects import Objects
from perf.chaos import models
from perf.chaos.sites.durable_redis import Redis
from perf.chaos.sites.gateways import Gateway
from perf.chaos_jobs.work import EMBEDDING, MODELS, TENANTS
from perf.servers import processes
from perf.servers.processes import PROJECT, Started, end
from perf.servers.rabbitmq import RabbitmqServer

ADMINISTRATOR = "administrator"
_GATEWAYS, _WORKERS = 2, 2
_AT_ONCE = "8"
_START_S = 60.0


class Worker:
    """A `tidegate jobs run` that a drill may kill, hold still and start again."""

    def __init__(self, folder: Path, *flags: str, variables: Mapping[str, str]) -> None:
        self.folder = folder
        self._words = ["jobs", "run", "--at-once", _AT_ONCE, *flags]
        self._variables = variables
        self._process: Started | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was never started"
        return self._process.pid

    def start(self) -> None:
        """Blocks until it runs jobs; one that finds its stores away ends, and is started again. Raises RuntimeError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        log, deadline_s = self.folder / "output.txt", time.monotonic() + _START_S
        before = log.stat().st_size if log.exists() else 0
        while True:
            if self._process is None or self._process.poll() is not None:
                if time.monotonic() > deadline_s:
                    raise RuntimeError(f"tidegate jobs run does not start:\n{log.read_text()[-3000:]}")
                self._process = processes.start_tidegate(self._words, log, {**os.environ, **self._variables})
            if log.exists() and b"running jobs" in log.read_bytes()[before:]:
                return
            time.sleep(0.05)

    def kill(self) -> None:
        assert self._process is not None, "it was never started"
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            end(self._process)


@dataclass(slots=True)
class Site:
    """Site of a drill: the processes that run, with their folder and keys."""

    folder: Path
    redis: Redis
    broker: RabbitmqServer
    gateways: Sequence[Gateway]
    workers: Sequence[Worker]
    keys: Mapping[str, str]
    """By tenant."""

    @property
    def spool(self) -> Path:
        return self.folder / "spool"

    @property
    def addresses(self) -> list[str]:
        return [gateway.address("http") for gateway in self.gateways]

    def stop_computing(self) -> None:
        """End gateways and workers, and leave what keeps the jobs."""
        for worker in self.workers:
            worker.stop()
        for gateway in self.gateways:
            gateway.stop()


@contextmanager
def site(folder: Path, *, appendfsync: str) -> Iterator[Site]:
    """All of it within the block; `appendfsync` is Redis's. Raises RuntimeError: something does not start."""
    repository = models.write(folder / "models", MODELS)
    (folder / "broker").mkdir()
    redis = Redis(folder / "redis", "--appendfsync", appendfsync)
    with ExitStack() as ends:
        ends.callback(redis.stop)
        redis.start()
        broker = RabbitmqServer(folder / "broker")
        ends.callback(broker.close)
        keys = asyncio.run(_make_keys(redis.url))
        variables = {"TIDEGATE_JOBS_URL": broker.url, "TIDEGATE_JOBS_SPOOL": str(folder / "spool")}
        flags = [
            part for path in (PROJECT / "model_repository", PROJECT / "ensembles", repository) for part in ("--model-repository", str(path))
        ]
        flags += [part for model in (*MODELS, EMBEDDING) for part in ("--load", model)]
        gateways = [
            Gateway(
                folder / f"gateway-{number}", *flags, "--authentication", "--state-url", redis.url, key=keys[ADMINISTRATOR],
                variables={**variables, "TIDEGATE_JOBS_RUN": "true" if number == 0 else "false", "TIDEGATE_JOBS_AT_ONCE": _AT_ONCE},
            )
            for number in range(_GATEWAYS)
        ]  # fmt: skip
        for gateway in gateways:
            ends.callback(gateway.stop)
            gateway.start()
        urls = ",".join(f"http://{gateway.address('http')}" for gateway in gateways)
        own = ("--gateway", urls, "--state-url", redis.url)
        secret = {**variables, "TIDEGATE_API_KEY": keys[ADMINISTRATOR]}
        workers = [Worker(folder / f"worker-{number}", *own, variables=secret) for number in range(_WORKERS)]
        for worker in workers:
            ends.callback(worker.stop)
            worker.start()
        yield Site(folder, redis, broker, gateways, workers, keys)


async def _make_keys(url: str) -> dict[str, str]:
    store = await open_state_store(SecretStr(url), Path())
    scopes = dict.fromkeys(TENANTS, "infer:*") | {ADMINISTRATOR: "admin"}
    try:
        for tenant in scopes:
            await Objects(store).put(Tenant(tenant))
        return {tenant: (await Keys(store).create(tenant, [parse_scope(scope)]))[1] for tenant, scope in scopes.items()}
    finally:
        await store.close()
