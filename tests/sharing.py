"""Tenants that share one busy model, in virtual time: how long each waits for its turns under `admission/admission`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from control_plane.admission.admission import Admission
from control_plane.admission.concurrency_limiter import SlotLimits
from control_plane.admission.domain.fair_queue import QueueLimits
from control_plane.core.errors import Overloaded
from control_plane.objects.domain.tenant import Tenant
from tests.aio import run_in_virtual_time

CAPACITY = 8
UNIT_S = 0.001

Cost = Callable[[Random], float]


def equal(_: Random) -> float:
    return 10.0


def mixed(random: Random) -> float:
    """One page among ten sentences."""
    return 50.0 if random.random() < 0.1 else 5.0


def large(_: Random) -> float:
    return 50.0


@dataclass(frozen=True, slots=True)
class Sender:
    """Clients that each send one request after the other, or requests that come at random whatever became of those before."""

    name: str
    tenant: Tenant
    cost: Cost
    clients: int = 0
    requests_per_s: float = 0.0


class Tenants:
    """`KnownTenants`."""

    def __init__(self, *tenants: Tenant) -> None:
        self.tenants: Mapping[str, Tenant] = {tenant.name: tenant for tenant in tenants}


@dataclass(slots=True)
class Served:
    """What one sender got."""

    waits_s: list[float] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)
    units: float = 0.0
    refused: int = 0

    @property
    def p99_wait_s(self) -> float:
        return sorted(self.waits_s)[int(len(self.waits_s) * 0.99)]

    @property
    def p99_latency_s(self) -> float:
        return sorted(self.latencies_s)[int(len(self.latencies_s) * 0.99)]


def share_a_model(*senders: Sender, seconds: float) -> dict[str, Served]:
    """What each got; the first tenth is left out, in which the queue fills."""

    async def main() -> dict[str, Served]:
        model = _Model(senders, seconds)
        async with asyncio.TaskGroup() as tasks:
            for sender in senders:
                if sender.requests_per_s:
                    tasks.create_task(model.stream(sender, Random(f"0 {sender.name}"), tasks))
                for number in range(sender.clients):
                    tasks.create_task(model.client(sender, Random(f"0 {sender.name} {number}")))
        return model.served

    return run_in_virtual_time(main())


class _Model:
    def __init__(self, senders: tuple[Sender, ...], seconds: float) -> None:
        self.served = {sender.name: Served() for sender in senders}
        self._now_s = asyncio.get_running_loop().time
        self._seconds = seconds
        self._admission = Admission(
            Tenants(*(sender.tenant for sender in senders)),
            slots=SlotLimits(CAPACITY, CAPACITY),
            queue=QueueLimits(max_waiting=2000, max_waiting_per_tenant=1000),
            now_s=self._now_s,
        )

    async def client(self, sender: Sender, random: Random) -> None:
        await asyncio.sleep(random.random() * 0.05)
        while self._now_s() < self._seconds:
            await self._request(sender, sender.cost(random))

    async def stream(self, sender: Sender, random: Random, tasks: asyncio.TaskGroup) -> None:
        while self._now_s() < self._seconds:
            await asyncio.sleep(random.expovariate(sender.requests_per_s))
            tasks.create_task(self._request(sender, sender.cost(random)))

    async def _request(self, sender: Sender, cost: float) -> None:
        came_s, served = self._now_s(), self.served[sender.name]
        try:
            turn_s = await self._run(sender, cost)
        except Overloaded as exc:
            served.refused += 1
            await asyncio.sleep(exc.retry_after_s or 1.0)
            return
        if self._seconds / 10 < came_s < self._seconds:
            served.waits_s.append(turn_s - came_s)
            served.latencies_s.append(self._now_s() - came_s)
            served.units += cost

    async def _run(self, sender: Sender, cost: float) -> float:
        """When it had its turn."""
        permit = self._admission.admit(sender.tenant.name)
        try:
            await permit.acquire_slot("model", cost_units=cost, deadline_s=self._now_s() + 1e5)
            turn_s = self._now_s()
            await asyncio.sleep(cost * UNIT_S)
            return turn_s
        finally:
            permit.release()
