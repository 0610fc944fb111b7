"""Weighted fair queue with priorities: which waiting request is next at a busy model. Pure; called by
`admission/concurrency_limiter`.

Among tenants of one priority it is start-time fair queuing (SFQ: Goyal, Vin and Cheng 1996; for several slots
Jin, Chase and Kaur 2004). Over any time in which two tenants are always backlogged, their service divided by
weight differs by at most one request of each; a tenant within its share waits for at most one request of each
other tenant, or, where the server allows it, not at all (`bypass`). A tenant's own requests wait in lanes by how
long each may take (`admission/domain/patience_lanes`).

Among priorities the highest is served first, yet lower ones do not starve: a request is passed over by work
for higher priorities of at most nine times its own cost, and the request in service. So a priority that waits
gets a tenth of what is done for it and those above: with one lower priority waiting the highest keeps 90 %,
with two 81 %.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace
from typing import Generic, TypeVar

from control_plane.admission.domain.patience_lanes import PatienceLanes
from control_plane.admission.domain.recent_turns import RecentTurns

Item = TypeVar("Item", bound=Hashable)

PASSED_OVER = 9.0
"""Work for higher priorities, as a multiple of its own cost, that may pass over the first request of a
priority.
"""


@dataclass(frozen=True, slots=True)
class Ticket:
    """Queueing terms of a request: whose it is, its weight and priority, and what it costs."""

    tenant: str
    weight: float
    priority: int
    cost: float
    """Above 0, in any unit that is the same for all requests."""
    lane: int = 0
    """Which of its tenant's requests it waits behind (`admission/domain/patience_lanes`)."""
    came_s: float = 0.0
    """When it came, by the event loop's clock."""

    @property
    def kind(self) -> tuple[str, int]:
        """Kind of request whose callers stay for about as long (`admission/domain/caller_patience`)."""
        return self.tenant, self.lane


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Bounds of the queue of one model."""

    max_waiting: int = 4096
    """Requests of all tenants that may wait; each holds its body and a connection meanwhile."""

    max_waiting_per_tenant: int = 2048
    """Requests of one tenant that may wait, also while no other tenant does."""


class FairQueue(Generic[Item]):
    """Weighted fair queue of items; each operation takes O(log n) for n tenants, and a step for each priority
    that waits.
    """

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._levels: list[_PriorityLevel[Item]] = []
        """Levels in which a request waits, highest priority first."""
        self._where: dict[Item, tuple[_PriorityLevel[Item], _Flow[Item]]] = {}
        self._ranks: list[tuple[float, int, _Flow[Item]]] = []
        """Tenants' flows sorted by queue length divided by weight: the last is the first to lose a request
        when the queue is full.
        """
        self._flows_made = 0

    @property
    def waiting(self) -> Collection[Item]:
        """The requests that wait, in no order: a live view of the queue, not a copy."""
        return self._where.keys()

    def __len__(self) -> int:
        return len(self._where)

    @property
    def cost(self) -> float:
        """Cost of all requests that wait."""
        return sum(level.cost for level in self._levels)

    def push(self, item: Item, ticket: Ticket) -> Item | None:
        """Enqueue an item. Return the one that is refused because the queue is full: the item itself, or one
        that waited until now.

        The victim is the newest request in the longest lane of the tenant whose queue is longest relative to its
        weight (longest queue drop), so that a tenant within its share of the room loses none.
        """
        level = self._level(ticket.priority)
        flow = level.flows.get(ticket.tenant) if level is not None else None
        own = len(flow.waiting) if flow is not None else 0
        refused: Item | None = None
        if own >= self._limits.max_waiting_per_tenant:
            refused = self._own_victim(flow, item, ticket)
        elif len(self) >= self._limits.max_waiting:
            length, _, longest = self._ranks[-1]
            # With this request its own tenant's queue may be the longest.
            is_own = length <= (own + 1) / ticket.weight
            refused = self._own_victim(flow, item, ticket) if is_own else longest.waiting.newest()
        if refused == item:
            return item
        if refused is not None:
            self.remove(refused)
        self._add(item, ticket)
        return refused

    def pop(self) -> Item:
        """Dequeue the item whose turn it is; the queue must not be empty."""
        level = self._next_level()
        flow = level.first()
        item, cost = level.serve(flow)
        self._count_served(level, cost)
        self._forget(item, level, flow)
        return item

    def remove(self, item: Item) -> bool:
        """Remove an item that no longer waits, because it was cancelled or has timed out; False if it is not
        in the queue.
        """
        if item not in self._where:
            return False
        level, flow = self._where[item]
        level.withdraw(flow, item)
        self._forget(item, level, flow)
        return True

    def ended(self, ticket: Ticket, *, has_left: bool) -> None:
        """Note that a request that had waited has been computed, whose caller had left or not."""
        level = self._level(ticket.priority)
        flow = None if level is None else level.flows.get(ticket.tenant)
        if flow is not None:
            flow.waiting.ended(ticket.lane, ticket.cost, has_left=has_left)

    def bypass(self, ticket: Ticket, slots: int) -> bool:
        """Serve a request ahead of those that wait, if it is within its tenant's share; True counts it as
        served, as `pop` does.

        It may go ahead if its tenant has no request that waits, and its virtual start is ahead of its turn by
        at most the tenant's share of `slots`. The queue must not be empty.
        """
        level = self._next_level()
        if level.priority != ticket.priority or not level.bypass(ticket, slots, self._flows_made + 1):
            return False
        self._flows_made += 1
        self._count_served(level, ticket.cost)
        return True

    def may_bypass(self, ticket: Ticket, slots: int) -> bool:
        """Whether `bypass` would serve a request ahead of those that wait."""
        level = self._next_level()
        return level.priority == ticket.priority and level.may_bypass(ticket, slots)

    def ahead(self, ticket: Ticket) -> float:
        """Estimate the cost of the work that is done before a request that comes now: all of higher
        priorities, and what the fair order puts before it in its own. Work of lower priorities is left out.
        """
        above = sum(level.cost for level in self._levels if level.priority > ticket.priority)
        level = self._level(ticket.priority)
        return above if level is None else above + level.ahead(ticket)

    def _own_victim(self, flow: _Flow[Item] | None, item: Item, ticket: Ticket) -> Item:
        """The request that its own tenant loses for `item`, which it may be itself."""
        victim = None if flow is None else flow.waiting.displaced_by(ticket.lane)
        return item if victim is None else victim

    def _level(self, priority: int) -> _PriorityLevel[Item] | None:
        for level in self._levels:
            if level.priority == priority:
                return level
        return None

    def _add(self, item: Item, ticket: Ticket) -> None:
        """Append an item to its tenant's flow, opening level and flow where they do not exist."""
        level = self._level(ticket.priority)
        if level is None:
            level = _PriorityLevel(ticket.priority)
            insort(self._levels, level, key=lambda level: -level.priority)
        flow = level.flows.get(ticket.tenant)
        if flow is None:
            self._flows_made += 1
            flow = level.open_flow(ticket, self._flows_made)
        level.admit(flow, item, ticket)
        self._where[item] = level, flow
        self._rank(flow)

    def _next_level(self) -> _PriorityLevel[Item]:
        """Return the lowest priority that has been passed over for long enough, or else the highest."""
        # From the lowest, which all others pass over.
        for level in reversed(self._levels[1:]):
            if level.passed_over >= PASSED_OVER * level.first().next_cost:
                return level
        return self._levels[0]

    def _count_served(self, level: _PriorityLevel[Item], cost: float) -> None:
        """Charge the levels below with work that passed them over, and pay the served level's own account
        off.
        """
        for other in self._levels:
            if other.priority < level.priority:
                other.passed_over += cost
        level.passed_over = max(0.0, level.passed_over - PASSED_OVER * cost)

    def _forget(self, item: Item, level: _PriorityLevel[Item], flow: _Flow[Item]) -> None:
        del self._where[item]
        self._rank(flow)
        if not level.waiting:
            self._levels.remove(level)

    def _rank(self, flow: _Flow[Item]) -> None:
        if flow.rank is not None:
            del self._ranks[bisect_left(self._ranks, flow.rank)]
        # The number decides between equals, since flows have no order.
        flow.rank = (len(flow.waiting) / flow.weight, flow.number, flow) if flow.waiting else None
        if flow.rank is not None:
            insort(self._ranks, flow.rank)


class _Flow(Generic[Item]):
    """Flow of the fair queue: one tenant's requests at one priority."""

    __slots__ = ("cost", "number", "rank", "start", "tenant", "waiting", "weight")

    def __init__(self, ticket: Ticket, number: int, start: float) -> None:
        self.tenant = ticket.tenant
        self.weight = ticket.weight
        self.number = number
        self.start = start
        """Virtual start time of the flow's next request (SFQ's start tag)."""
        self.waiting: PatienceLanes[Item] = PatienceLanes()
        self.rank: tuple[float, int, _Flow[Item]] | None = None

    @property
    def next_cost(self) -> float:
        return self.waiting.next_cost


class _PriorityLevel(Generic[Item]):
    """Start-time fair queue of one priority.

    Virtual time is the start tag of the request served last. A flow is kept until virtual time has reached
    the end of its last request, even if none of its requests waits: a tenant that leaves and returns gains
    nothing by it. After that the flow drops out of the heap by itself.
    """

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.flows: dict[str, _Flow[Item]] = {}
        self.waiting = 0
        self.cost = 0.0
        self.passed_over = 0.0
        """Cost of work for higher priorities since this one was last served, less what its own service has
        paid off.
        """
        self._order: list[tuple[float, int, _Flow[Item]]] = []
        self._number = 0
        self._now = 0.0
        self._weights = 0.0
        """Weights of the flows with waiting requests."""
        self._open_weights = 0.0
        """Weights of all flows."""
        self._recent = RecentTurns()

    def open_flow(self, ticket: Ticket, number: int) -> _Flow[Item]:
        """Add a flow that starts at the present virtual time."""
        flow: _Flow[Item] = _Flow(ticket, number, self._now)
        self.flows[ticket.tenant] = flow
        self._open_weights += flow.weight
        heappush(self._order, self._place(flow))
        return flow

    def admit(self, flow: _Flow[Item], item: Item, ticket: Ticket) -> None:
        # The tenant's weight may have been changed since its last request; the new one holds for what waits, too.
        self._weights += ticket.weight - (flow.weight if flow.waiting else 0.0)
        self._open_weights += ticket.weight - flow.weight
        flow.weight = ticket.weight
        flow.waiting.push(item, ticket.lane, ticket.cost)
        self._count(1, ticket.cost)

    def first(self) -> _Flow[Item]:
        """Return the flow whose turn it is; a request must be waiting."""
        while True:
            start, _, flow = self._order[0]
            if start != flow.start:  # stale: a request of the flow was served ahead of its turn (`bypass`) since
                heapreplace(self._order, self._place(flow))
            elif flow.waiting:
                return flow
            else:
                self._close(start, flow)

    def serve(self, flow: _Flow[Item]) -> tuple[Item, float]:
        """Dequeue the next request of the flow that `first` returned; return it and its cost."""
        self._now = flow.start
        item, cost = flow.waiting.pop()
        flow.start += cost / flow.weight
        heapreplace(self._order, self._place(flow))
        self._note_left(flow, cost)
        self._recent.served(flow.tenant, flow.weight, cost)
        return item, cost

    def bypass(self, ticket: Ticket, slots: int, number: int) -> bool:
        """Serve a request ahead of its turn as `FairQueue.bypass` says; `number` identifies a new flow."""
        if not self.may_bypass(ticket, slots):
            return False
        flow, weight = self.flows.get(ticket.tenant) or self.open_flow(ticket, number), ticket.weight
        flow.start += ticket.cost / weight
        self._recent.served(ticket.tenant, weight, ticket.cost)
        return True

    def may_bypass(self, ticket: Ticket, slots: int) -> bool:
        flow = self.flows.get(ticket.tenant)
        start, own = (flow.start, flow.weight) if flow is not None else (self._now, 0.0)
        ahead_at_most = ticket.cost * slots / (self._open_weights - own + ticket.weight)
        return start - self._now < ahead_at_most and not (flow is not None and flow.waiting)

    def withdraw(self, flow: _Flow[Item], item: Item) -> None:
        self._note_left(flow, flow.waiting.remove(item))

    def ahead(self, ticket: Ticket) -> float:
        """Estimate the cost of the work done before a request's end in virtual time, which advances more
        slowly the more weight waits; at least what others get until then if they go on as of late, though nothing of
        theirs may wait just now.
        """
        flow = self.flows.get(ticket.tenant)
        start, waits, own, at_most = self._now, 0.0, 0.0, self.cost
        if flow is not None:
            start, waits, own = flow.start, flow.weight if flow.waiting else 0.0, flow.waiting.ahead(ticket.lane)
            at_most += own - flow.waiting.cost
        end = start + (own + ticket.cost) / ticket.weight
        of_waiting = min(at_most, (end - self._now) * (self._weights - waits + ticket.weight) - ticket.cost)
        turns = max(0.0, start - self._now) * ticket.weight + own  # what its tenant gets until it is served
        return max(of_waiting, own + turns * (1 / self._recent.least_share(ticket.tenant, ticket.weight) - 1))

    def _close(self, start: float, flow: _Flow[Item]) -> None:
        """Drop a flow whose service virtual time has caught up with."""
        heappop(self._order)
        self._now = start
        self._open_weights -= flow.weight
        del self.flows[flow.tenant]

    def _place(self, flow: _Flow[Item]) -> tuple[float, int, _Flow[Item]]:
        """Return the flow's heap entry; the number breaks ties, first come, first served."""
        self._number += 1
        return flow.start, self._number, flow

    def _note_left(self, flow: _Flow[Item], cost: float) -> None:
        self._count(-1, -cost)
        if not flow.waiting:
            self._weights -= flow.weight

    def _count(self, waiting: int, cost: float) -> None:
        self.waiting += waiting
        self.cost += cost
