"""Open-loop load of one model before a simulated Triton, in virtual time.

The simulated Triton computes whatever it was sent, also after the deadline, when the caller has gone; the
permit's slot is kept for as long as `triton/adapters` do.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

from control_plane.admission.admission import Admission
from control_plane.admission.concurrency_limiter import SlotLimits
from control_plane.admission.domain.fair_queue import QueueLimits
from control_plane.core.errors import Overloaded
from control_plane.objects.domain.tenant import Tenant
from control_plane.triton.adapters.abandoned import patience_s
from tests.sharing import Tenants

SERVICE_S = 0.03


PEAK_PER_S = 1 / SERVICE_S


DEADLINE_S = 1.0


@dataclass
class Triton:
    """Model with so many instances, each of which computes one request after the other."""

    instances: int = 1
    service_s: Callable[[], float] = lambda: SERVICE_S
    most: int = 0
    _free_s: list[float] = field(default_factory=list)
    at_once: int = 0

    def ends_s(self, now_s: float) -> float:
        """Take a request in; return when it will have ended."""
        self._free_s = self._free_s or [0.0] * self.instances
        first = min(range(self.instances), key=self._free_s.__getitem__)
        self._free_s[first] = max(now_s, self._free_s[first]) + self.service_s()
        return self._free_s[first]


@dataclass
class Seen:
    in_time_s: list[float] = field(default_factory=list)
    """When each answer in time came."""
    late: int = 0
    refused_after_s: list[float] = field(default_factory=list)
    retry_after_s: list[float] = field(default_factory=list)
    by_caller: dict[str, int] = field(default_factory=dict)

    def per_s(self, since_s: float, until_s: float) -> float:
        return sum(since_s < at_s <= until_s for at_s in self.in_time_s) / (until_s - since_s)


@dataclass
class Bench:
    """Open-loop load of one model; `tenants` take turns."""

    slots: SlotLimits
    triton: Triton
    tenants: tuple[Tenant, ...] = (Tenant(""),)
    leaves_after_s: float = DEADLINE_S
    """Callers leave then; their deadline is later if this is earlier."""
    cost_units: Callable[[], float] = lambda: 1.0
    patience_s: Callable[[float, float], float] = patience_s
    """How long the end of a request is waited for whose caller has left, by what it has had and what it should take."""
    seen: Seen = field(default_factory=Seen)

    def __post_init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.admission = Admission(Tenants(*self.tenants), slots=self.slots, queue=QueueLimits(), now_s=self.loop.time)

    async def load(self, seconds: float, per_s: float, caller: str = "", deadline_s: float = DEADLINE_S) -> None:
        random, number = Random(f"{caller} {per_s}"), 0
        until_s = self.loop.time() + seconds
        async with asyncio.TaskGroup() as tasks:
            while self.loop.time() < until_s:
                await asyncio.sleep(random.expovariate(per_s))
                tasks.create_task(self._request(self.tenants[number % len(self.tenants)].name, caller, deadline_s))
                number += 1

    async def _request(self, tenant: str, caller: str, deadline_s: float) -> None:
        came_s = self.loop.time()
        permit = self.admission.admit(tenant)
        assert permit is not None
        try:
            await permit.acquire_slot("m", cost_units=self.cost_units(), deadline_s=came_s + deadline_s)
            now_s = self.loop.time()
            ends_s, leaves_s = self.triton.ends_s(now_s), came_s + min(self.leaves_after_s, deadline_s)
            if ends_s > leaves_s:
                permit.keep()
                left_s = leaves_s - now_s
                self.loop.call_at(min(ends_s, leaves_s + self.patience_s(left_s, permit.expected_s)), permit.let_go)
            await asyncio.sleep(min(ends_s, leaves_s) - now_s)
            if ends_s > leaves_s:
                self.seen.late += 1
            else:
                self.seen.in_time_s.append(self.loop.time())
                self.seen.by_caller[caller] = self.seen.by_caller.get(caller, 0) + 1
        except Overloaded as exc:
            self.seen.refused_after_s.append(self.loop.time() - came_s)
            self.seen.retry_after_s.append(exc.retry_after_s or 0.0)
        finally:
            permit.release()


NO_TENANTS, TENANTS = (Tenant(""),), (Tenant("a"), Tenant("b"), Tenant("c"))


OPEN, LIMITED = SlotLimits(256, 256), SlotLimits(64, 16)


def jitter(part: float) -> Callable[[], float]:
    random = Random(0)
    return lambda: SERVICE_S * random.uniform(1 - part, 1 + part)


class Leaving(Bench):
    """Whose callers leave wherever their request is, also while it waits for a slot."""

    async def _request(self, tenant: str, caller: str, deadline_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self.leaves_after_s):
                await super()._request(tenant, caller, deadline_s)


@dataclass
class Batching(Triton):
    """Model that computes what waits in batches of 16, each in the time of one request."""

    _ends_s: float = 0.0
    _waiting: int = 0

    def ends_s(self, now_s: float) -> float:
        while self._waiting and now_s >= self._ends_s:
            self._waiting -= min(BATCH, self._waiting)
            self._ends_s += SERVICE_S
        if now_s >= self._ends_s:
            self._ends_s = now_s + SERVICE_S
            return self._ends_s
        self._waiting += 1
        return self._ends_s + SERVICE_S * math.ceil(self._waiting / BATCH)


BATCH = 16


@dataclass
class Growing(Triton):
    """Model that is quick alone, and slow in batches of up to 128."""

    _ends_s: float = 0.0
    _waiting: int = 0

    def ends_s(self, now_s: float) -> float:
        while self._waiting and now_s >= self._ends_s:
            self._waiting -= min(128, self._waiting)
            self._ends_s += 0.5
        if now_s >= self._ends_s:
            self._ends_s = now_s + 0.02
            return self._ends_s
        self._waiting += 1
        return self._ends_s + 0.5 * math.ceil(self._waiting / 128)
