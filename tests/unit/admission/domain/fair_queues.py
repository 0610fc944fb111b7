"""Fair queues and tickets for tests."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import strategies as st

from control_plane.admission.domain.fair_queue import FairQueue, QueueLimits, Ticket

PLENTY = QueueLimits(max_waiting=10**6, max_waiting_per_tenant=10**6)

weights = st.floats(0.1, 10)
costs = st.floats(0.01, 100)


def ticket(tenant: str = "a", *, weight: float = 1.0, priority: int = 0, cost: float = 1.0, lane: int = 0) -> Ticket:
    return Ticket(tenant=tenant, weight=weight, priority=priority, cost=cost, lane=lane)


def queue_of(tickets: Iterable[Ticket], limits: QueueLimits = PLENTY) -> tuple[FairQueue[int], dict[int, Ticket]]:
    """Fair queue of items that are numbered in the order in which they came."""
    queue, by_item = FairQueue[int](limits), dict(enumerate(tickets))
    for item, each in by_item.items():
        assert queue.push(item, each) is None
    return queue, by_item


@st.composite
def backlogs_of_tenants(draw: st.DrawFn) -> list[list[Ticket]]:
    """Strategy: some tenants of one priority, each with costs of its own."""
    return [
        [ticket(name, weight=weight, cost=cost) for cost in draw(st.lists(costs, min_size=10, max_size=30))]
        for name, weight in zip("abcd", draw(st.lists(weights, min_size=2, max_size=4)), strict=False)
    ]
