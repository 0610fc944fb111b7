"""A world for jobs on a folder: the real SQLite store, folder spool and polled queue, with a clock of its own, in which
processes can be made to die before or after any of their calls to the outside.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from control_plane.core.principal import Principal
from control_plane.core.scope import Scopes, parse_scope
from control_plane.jobs.adapters.folder_spool import FolderSpool
from control_plane.jobs.adapters.polled_tickets import PolledTickets
from control_plane.jobs.adapters.sqlite_jobs import SqliteJobStore, open_sqlite_jobs
from control_plane.jobs.domain.gate import BulkGate
from control_plane.jobs.domain.job import Job
from control_plane.jobs.domain.transitions import RetryPolicy
from control_plane.jobs.jobs import Jobs, Submission
from control_plane.jobs.ports import Bounds, JobBackend, JobTotals
from control_plane.jobs.runner import JobRunner
from control_plane.jobs.sweeper import Sweeper
from tests.fakes.jobs import PLENTY, ROOMY, FakeCompute, FakeUsage

CALLER = Principal("team", "key", Scopes((parse_scope("infer:*"),)))
WANTED = Submission(model="m", target="/v2/models/m/infer", headers=(("x-a", "b"),), body=b"body", idempotency_key="one")


class Killed(BaseException):
    """The process has died here."""


@dataclass
class Fate:
    """When a process dies: at its call of this number, before it has any effect or after all of it."""

    at: int = 1 << 30
    is_after: bool = False
    calls: int = 0
    is_dead: bool = False
    made: list[str] = field(default_factory=list)

    def of(self, outside: Any) -> Any:
        """Return `outside` as this process has it."""
        return _Mortal(outside, self)


class _Mortal:
    def __init__(self, outside: Any, fate: Fate) -> None:
        self._outside, self._fate = outside, fate

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._outside, name)
        if not asyncio.iscoroutinefunction(found):
            return found

        async def call(*args: Any, **named: Any) -> Any:
            fate = self._fate
            if fate.is_dead:
                raise Killed
            made = f"{type(self._outside).__name__}.{name}"
            if name == "run" or (name == "take" and made in fate.made):  # it waits for more beside what is done
                return await found(*args, **named)
            fate.calls += 1
            number = fate.calls
            fate.made.append(made)
            if number == fate.at and not fate.is_after:
                fate.is_dead = True
                raise Killed
            answer = await found(*args, **named)
            if number >= fate.at:
                fate.is_dead = True
                if name == "read_file":
                    answer.close()  # as the kernel does for a process that has died
                raise Killed
            return [fate.of(ticket) for ticket in answer] if name == "take" else answer

        return call


@dataclass
class World:
    """Where processes come and go; what they leave is on disk."""

    store: SqliteJobStore
    spool: FolderSpool
    folder: Path
    usage: FakeUsage = field(default_factory=FakeUsage)
    compute: FakeCompute = field(default_factory=FakeCompute)
    policy: RetryPolicy = field(default_factory=lambda: RetryPolicy(max_attempts=3, still_s=0.0))
    """With the one clock that there is nobody waits to see whether it was set."""
    clock_s: float = 1000.0

    def now_s(self) -> float:
        return self.clock_s

    @property
    def queue(self) -> PolledTickets:
        """The queue as another process has it: what it holds in memory ends with the process."""
        return PolledTickets(self.store, today_s=self.now_s)

    def backend(self, fate: Fate | None = None, *, store: Any = None, queue: Any = None) -> JobBackend:
        """The backend as a process of this fate has it."""
        fate = fate or Fate()
        return JobBackend(fate.of(store or self.store), fate.of(queue or self.queue), fate.of(self.spool))

    def jobs(self, fate: Fate | None = None, bounds: Bounds = ROOMY, **others: Any) -> Jobs:
        return Jobs(self.backend(fate), bounds=bounds, policy=self.policy, expire_s=1e4, today_s=self.now_s, **others)

    def runner(
        self,
        fate: Fate | None = None,
        *,
        store: Any = None,
        compute: Any = None,
        slots: int = 1,
        weights: dict[str, float] | None = None,
    ) -> JobRunner:
        return JobRunner(
            self.backend(fate, store=store),
            usage=(fate or Fate()).of(self.usage),
            compute=compute or self.compute,
            gate=BulkGate(slots, float(slots)),
            holder="h",
            policy=self.policy,
            weight_of=lambda tenant: (weights or {}).get(tenant, 1.0),
            today_s=self.now_s,
        )

    def sweeper(
        self, fate: Fate | None = None, *, store: Any = None, queue: Any = None, kept: JobTotals = PLENTY, **others: Any
    ) -> Sweeper:
        given: dict[str, Any] = {"now_s": self.now_s} | others
        backend, usage = self.backend(fate, store=store, queue=queue), (fate or Fate()).of(self.usage)
        return Sweeper(backend, usage=usage, policy=self.policy, kept=kept, today_s=self.now_s, **given)

    async def submit(self, number: int = 0, **changes: Any) -> Job:
        self.clock_s += 0.001  # jobs of one time would go in the order of their random ids
        wanted: dict[str, Any] = {"model": "m", "target": "/v2/models/m/infer", "headers": (), "body": b"body %d" % number}
        return await self.jobs().submit(CALLER, Submission(**(wanted | changes)))

    async def job(self, job_id: str) -> Job:
        found = await self.store.get(job_id)
        assert found is not None
        return found

    async def until(self, condition: Callable[[Job], bool], job_id: str) -> Job:
        while not condition(found := await self.job(job_id)):
            await asyncio.sleep(0.005)
        return found

    def files(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "spool").glob("*/*/*"))


@asynccontextmanager
async def world(folder: Path, *, carries_bytes: int = 0) -> AsyncIterator[World]:
    """The world on a folder; `carries_bytes`: bodies and results up to this size are in the records."""
    store = await open_sqlite_jobs(folder / "jobs.sqlite", carries_bytes=carries_bytes)
    spool = FolderSpool(folder / "spool")
    made = World(store, spool, folder)
    try:
        yield made
    finally:
        await spool.close()
        await store.close()


@asynccontextmanager
async def running(runner: JobRunner) -> AsyncIterator[asyncio.Task[None]]:
    """The runner at work within the block."""
    task = asyncio.get_running_loop().create_task(runner.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # of one that has died: looked at, so that the loop does not complain
