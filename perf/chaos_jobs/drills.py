"""Every drill of jobs: what is done, and what callers are to see of it.

The table in docs/operations/faults.md is made of this list.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

from perf.chaos_jobs import audit
from perf.chaos_jobs.callers import Callers
from perf.chaos_jobs.faults import Faults
from perf.chaos_jobs.site import Site
from perf.chaos_jobs.work import Wanted

_DELETIONS = 3
_REST = 0.05
"""Part of the jobs that are still open when no more faults are begun."""


@dataclass(slots=True)
class Scene:
    """Context of a drill: the site, its callers and the options."""

    site: Site
    callers: Callers
    jobs: Iterator[Wanted]
    count: int
    batches: int
    seed: int
    fault_s: float
    """Seconds for which faults go on at most."""
    faults: dict[str, int] = field(default_factory=dict)
    """How often each was done."""
    saved_s: float = math.inf
    """When what Redis is set back to was copied, in seconds since 1970; who was accepted later may be forgotten."""


Act = Callable[[Scene], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Drill:
    """Drill: what is done to the gateways and their stores, and what callers see of it."""

    name: str
    act: Act
    done: str
    seen: str
    part: float = 1.0
    """Share of the first drill's number of jobs that this one hands in."""
    appendfsync: str = "always"

    @property
    def key(self) -> str:
        """The drill's name as names of figures have it."""
        return self.name.lower().replace(" ", "_").replace(",", "")


async def kill_everything(scene: Scene) -> None:
    """Faults at random from the first job handed in until few are open."""
    faults = Faults(scene.site, scene.seed)
    async with asyncio.TaskGroup() as tasks:
        faulting = tasks.create_task(faults.run())
        ending = tasks.create_task(_end_after(faults, scene.fault_s))
        tasks.create_task(scene.callers.hand_in_batches(scene.batches, scene.seed))
        await scene.callers.hand_in(scene.jobs)
        while not faulting.done() and not await _are_few_open(scene):
            await asyncio.sleep(0.5)
        faults.end()
        ending.cancel()
    scene.faults |= faults.done


async def delete_the_queue(scene: Scene) -> None:
    """Delete the queue with the tickets in it, several times while jobs are handed in."""
    for _ in range(_DELETIONS):
        await scene.callers.hand_in(islice(scene.jobs, scene.count // (_DELETIONS + 1)))
        await audit.delete_queue(scene.site)
    scene.faults["the queue is deleted"] = _DELETIONS
    await scene.callers.hand_in(scene.jobs)
    await scene.callers.hand_in_batches(scene.batches, scene.seed)


async def set_redis_back(scene: Scene) -> None:
    """Have it start with what it had on disk when half the jobs were handed in; the rest of them came since."""
    await _set_back(scene, after=0.5)


async def cut_the_power(scene: Scene) -> None:
    """Have it start with what was on disk a moment ago, as `appendfsync everysec` may leave it."""
    await _set_back(scene, after=0.95)


async def _set_back(scene: Scene, *, after: float) -> None:
    site, saved = scene.site, scene.site.folder / "saved"
    await scene.callers.hand_in_batches(scene.batches, scene.seed)
    await scene.callers.hand_in(islice(scene.jobs, int(scene.count * after)))
    scene.saved_s = time.time()
    await asyncio.to_thread(site.redis.save, saved)
    await scene.callers.hand_in(scene.jobs)
    site.redis.kill()
    site.redis.go_back(saved)
    await asyncio.to_thread(site.redis.start)
    scene.faults["Redis is set back"] = 1


async def _end_after(faults: Faults, seconds: float) -> None:
    await asyncio.sleep(seconds)
    faults.end()


async def _are_few_open(scene: Scene) -> bool:
    with suppress(Exception):  # Redis may be away now
        return await asyncio.wait_for(audit.open_jobs(scene.site), 5.0) < _REST * scene.count
    return False


_ANSWERED = "each job is answered once, by the synchronous answer; some later"

DRILLS = {
    drill.name: drill
    for drill in (
        Drill(
            "jobs while everything dies", kill_everything,
            "kill -9 and SIGSTOP at random of workers, gateways, Tritons, RabbitMQ and Redis while jobs are handed in and run", _ANSWERED,
        ),
        Drill("jobs lose their queue", delete_the_queue, "the queue in RabbitMQ is deleted three times", _ANSWERED, part=0.1),
        Drill(
            "jobs in a Redis set back", set_redis_back, "kill -9 of Redis, and a start with the append-only file of half the jobs before",
            "jobs that were accepted since are not known any more; each of the others is answered once", part=0.1,
        ),
        Drill(
            "jobs and a power cut", cut_the_power, "kill -9 of Redis, and a start with the append-only file of a moment before",
            "with `appendfsync everysec` jobs of the last second are not known any more; each of the others is answered once", part=0.1,
            appendfsync="everysec",
        ),
    )
}  # fmt: skip
