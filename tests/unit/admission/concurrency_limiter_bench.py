"""A concurrency limiter whose requests wait in tasks that a test gives their answers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from math import inf

from control_plane.admission.concurrency_limiter import ConcurrencyLimiter, SlotLimits
from control_plane.admission.domain.fair_queue import QueueLimits, Ticket
from control_plane.telemetry.shed_reason import ShedReason
from tests.aio import settle

Task = asyncio.Task[ShedReason | None]


def ticket(tenant: str = "a", *, cost: float = 1.0) -> Ticket:
    return Ticket(tenant=tenant, weight=1.0, priority=0, cost=cost)


@dataclass
class Held:
    """Slot of a request that did not wait in the queue, as a permit holds it."""

    sent_s: float
    deadline_s: float
    ahead: float = 0.0
    cost: float = 1.0
    has_left: bool = False
    ticket: Ticket | None = None


def release(slots: ConcurrencyLimiter, tenant: str, *, held_s: float, ahead: float = 0.0, allowed_s: float = inf) -> None:
    """Give a tenant's slot back that Triton had for so long (0: never), of `allowed_s` until the request's deadline."""
    now_s = slots._now_s()
    slots.release(tenant, Held(now_s - held_s, now_s - held_s + allowed_s, ahead), now_s)


def give(slots: ConcurrencyLimiter, held_s: float = 1.0) -> None:
    """Give one of the held slots back."""
    release(slots, next(iter(slots._held)), held_s=held_s)


class Bench:
    """A model's slots, all taken, and the requests that wait for one."""

    def __init__(self, tasks: asyncio.TaskGroup, count: int = 1, *, room: int = 100) -> None:
        self.loop = asyncio.get_running_loop()
        self.slots = ConcurrencyLimiter(SlotLimits(count, count), QueueLimits(room, room), self.loop.time)
        self.order: list[str] = []
        self._tasks = tasks
        for _ in range(count):
            assert self.slots.try_acquire("a")

    def in_(self, seconds: float) -> float:
        return self.loop.time() + seconds

    async def waiting(self, tenant: str, *, seconds: float = 1000.0, cost: float = 1.0) -> Task:
        """Start a request that waits for a slot and keeps it."""
        task = self._tasks.create_task(self._take(tenant, seconds, cost))
        await settle()
        return task

    async def _take(self, tenant: str, seconds: float, cost: float) -> ShedReason | None:
        reason = await self.slots.acquire(ticket(tenant, cost=cost), self.in_(seconds))
        if reason is None:
            self.order.append(tenant)
        return reason

    def give(self, held_s: float = 0.0) -> None:
        give(self.slots, held_s)

    async def knows(self, held_s: float) -> None:
        """Have a request that took so long end, and let time pass until it is believed; then all slots are taken again."""
        give(self.slots, held_s)
        assert self.slots.try_acquire("a")
        await asyncio.sleep(held_s / 4)

    def free(self) -> int:
        """Take all free slots and return how many there were."""
        count = 0
        while self.slots.try_acquire("a"):
            count += 1
        return count
