"""Whose turn it is at a model that cannot serve everybody at once; asked by `admission/concurrency_slots`.

Among tenants of one priority: start-time fair queuing (Goyal, Vin and Cheng 1996; with several slots Jin, Chase and Kaur
2004). Over any time in which two tenants always wait, what they get by weight differs by one request of each at most; a
tenant within its share waits for one request of each other at most. Where the server allows it need not wait at all: `pass_by`.

Among priorities: the highest is next. But work of higher ones passes over a request by nine times its own cost at most, and
the request that is served meanwhile: a priority that waits gets a tenth of what is done for it and those above it. So with
one lower priority waiting the highest keeps 90 %, with two 81 %, and none ever starves.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)

PASSED_OVER = 9.0
"""Times its own cost that a request next in its priority may see done for higher ones."""


@dataclass(frozen=True, slots=True)
class Claim:
    """On what terms a request waits."""

    tenant: str
    weight: float
    priority: int
    cost: float
    """Above 0, in any unit that is the same for all."""


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Requests that may wait for one model."""

    max_waiting: int = 4096
    """Each holds its body and a connection."""

    max_waiting_per_tenant: int = 2048
    """Also of a tenant that is alone."""


class FairQueue(Generic[Item]):
    """Items that wait; O(log n) for n tenants and a step for each priority that waits."""

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._levels: list[_Level[Item]] = []
        """By priority, the highest first; only such in which somebody waits."""
        self._where: dict[Item, tuple[_Level[Item], _Flow[Item]]] = {}
        self._ranks: list[tuple[float, int, _Flow[Item]]] = []
        """Every tenant that waits, by the length of its queue relative to its weight."""
        self._flows_made = 0

    def __len__(self) -> int:
        return len(self._where)

    @property
    def cost(self) -> float:
        """Of all that waits."""
        return sum(level.cost for level in self._levels)

    def push(self, item: Item, claim: Claim) -> Item | None:
        """Let it wait. Returns who is refused for want of room: the item itself, or one that has waited and does no longer.

        That is the newest of the tenant whose queue is the longest for its weight: a tenant whose requests are no more
        than its share of the room loses none.
        """
        level = self._level(claim.priority)
        flow = level.flows.get(claim.tenant) if level is not None else None
        own = len(flow.waiting) if flow is not None else 0
        refused = None
        if own >= self._limits.max_waiting_per_tenant:
            return item
        if len(self) >= self._limits.max_waiting:
            length, _, longest = self._ranks[-1]
            if length <= (own + 1) / claim.weight:
                return item
            refused = next(reversed(longest.waiting))
            self.remove(refused)
        self._add(item, claim)
        return refused

    def pop(self) -> Item:
        """Take whose turn it is; somebody must wait."""
        level = self._whose_turn()
        flow = level.first()
        item, cost = level.serve(flow)
        self._count_served(level, cost)
        self._forget(item, level, flow)
        return item

    def remove(self, item: Item) -> bool:
        """Take out one that no longer wants to wait; False where it does not wait."""
        if item not in self._where:
            return False
        level, flow = self._where[item]
        level.withdraw(flow, item)
        self._forget(item, level, flow)
        return True

    def pass_by(self, claim: Claim, slots: int) -> bool:
        """Whether a request may be served now though others wait, and somebody must: it counts as served then, as after `pop`.

        It may if its tenant has none that waits and keeps to its share: it is ahead of its turn by its part of so many slots at most.
        """
        level = self._whose_turn()
        if level.priority != claim.priority or not level.pass_by(claim, slots, self._flows_made + 1):
            return False
        self._flows_made += 1
        self._count_served(level, claim.cost)
        return True

    def ahead(self, claim: Claim) -> float:
        """About what is done before a request that comes now: of higher priorities all, of its own by the fair order."""
        above = sum(level.cost for level in self._levels if level.priority > claim.priority)
        level = self._level(claim.priority)
        return above if level is None else above + level.ahead(claim)

    def _level(self, priority: int) -> _Level[Item] | None:
        for level in self._levels:
            if level.priority == priority:
                return level
        return None

    def _add(self, item: Item, claim: Claim) -> None:
        level = self._level(claim.priority)
        if level is None:
            level = _Level(claim.priority)
            insort(self._levels, level, key=lambda level: -level.priority)
        flow = level.flows.get(claim.tenant)
        if flow is None:
            self._flows_made += 1
            flow = level.open_flow(claim, self._flows_made)
        level.admit(flow, item, claim)
        self._where[item] = level, flow
        self._rank(flow)

    def _whose_turn(self) -> _Level[Item]:
        for level in reversed(self._levels[1:]):
            if level.passed_over >= PASSED_OVER * level.first().next_cost:
                return level
        return self._levels[0]

    def _count_served(self, level: _Level[Item], cost: float) -> None:
        for other in self._levels:
            if other.priority < level.priority:
                other.passed_over += cost
        level.passed_over = max(0.0, level.passed_over - PASSED_OVER * cost)

    def _forget(self, item: Item, level: _Level[Item], flow: _Flow[Item]) -> None:
        del self._where[item]
        self._rank(flow)
        if not level.waiting:
            self._levels.remove(level)

    def _rank(self, flow: _Flow[Item]) -> None:
        if flow.rank is not None:
            del self._ranks[bisect_left(self._ranks, flow.rank)]
        flow.rank = (len(flow.waiting) / flow.weight, flow.number, flow) if flow.waiting else None
        if flow.rank is not None:
            insort(self._ranks, flow.rank)


class _Flow(Generic[Item]):
    """One tenant's requests at one priority."""

    __slots__ = ("cost", "number", "rank", "start", "tenant", "waiting", "weight")

    def __init__(self, claim: Claim, number: int, start: float) -> None:
        self.tenant = claim.tenant
        self.weight = claim.weight
        self.number = number
        self.start = start
        """In virtual time: when its next request starts, at the earliest."""
        self.waiting: OrderedDict[Item, float] = OrderedDict()
        """What each costs, oldest first. A dict would take longer and longer to find its first after removals."""
        self.cost = 0.0
        self.rank: tuple[float, int, _Flow[Item]] | None = None

    @property
    def next_cost(self) -> float:
        return next(iter(self.waiting.values()))


class _Level(Generic[Item]):
    """What waits at one priority.

    Virtual time is the start of what was served last. A tenant's flow stays until virtual time has reached the end of what it
    got, also when nothing of it waits: who leaves and returns gains nothing. Then it drops out of the heap by itself.
    """

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.flows: dict[str, _Flow[Item]] = {}
        self.waiting = 0
        self.cost = 0.0
        self.passed_over = 0.0
        """Cost of what was done for higher priorities, less what was done here in return."""
        self._order: list[tuple[float, int, _Flow[Item]]] = []
        self._number = 0
        self._now = 0.0
        self._weights = 0.0
        """Of the tenants that wait."""
        self._open_weights = 0.0
        """Of all flows."""

    def open_flow(self, claim: Claim, number: int) -> _Flow[Item]:
        flow: _Flow[Item] = _Flow(claim, number, self._now)
        self.flows[claim.tenant] = flow
        self._open_weights += flow.weight
        heappush(self._order, self._place(flow))
        return flow

    def admit(self, flow: _Flow[Item], item: Item, claim: Claim) -> None:
        self._weights += claim.weight - (flow.weight if flow.waiting else 0.0)
        self._open_weights += claim.weight - flow.weight
        flow.weight = claim.weight
        flow.waiting[item] = claim.cost
        self._count(flow, 1, claim.cost)

    def first(self) -> _Flow[Item]:
        """The flow whose turn it is; somebody must wait."""
        while True:
            start, _, flow = self._order[0]
            if start != flow.start:  # it has passed by since
                heapreplace(self._order, self._place(flow))
            elif flow.waiting:
                return flow
            else:
                self._close(start, flow)

    def serve(self, flow: _Flow[Item]) -> tuple[Item, float]:
        """Take the oldest of the flow that is `first`."""
        self._now = flow.start
        item, cost = flow.waiting.popitem(last=False)
        flow.start += cost / flow.weight
        heapreplace(self._order, self._place(flow))
        self._left(flow, cost)
        return item, cost

    def pass_by(self, claim: Claim, slots: int, number: int) -> bool:
        """As `FairQueue.pass_by`; `number` is for a new flow."""
        flow, weight = self.flows.get(claim.tenant), claim.weight
        start, own = (flow.start, flow.weight) if flow is not None else (self._now, 0.0)
        ahead_at_most = claim.cost * slots / (self._open_weights - own + weight)
        if start - self._now >= ahead_at_most or (flow is not None and flow.waiting):
            return False
        if flow is None:
            flow = self.open_flow(claim, number)
        flow.start += claim.cost / weight
        return True

    def withdraw(self, flow: _Flow[Item], item: Item) -> None:
        self._left(flow, flow.waiting.pop(item))

    def ahead(self, claim: Claim) -> float:
        """What is done until virtual time reaches a request's end, which it does the slower the more tenants wait."""
        flow = self.flows.get(claim.tenant)
        start, waits, own = (flow.start, flow.weight if flow.waiting else 0.0, flow.cost) if flow is not None else (self._now, 0.0, 0.0)
        end = start + (own + claim.cost) / claim.weight
        return min(self.cost, (end - self._now) * (self._weights - waits + claim.weight) - claim.cost)

    def _close(self, start: float, flow: _Flow[Item]) -> None:
        heappop(self._order)
        self._now = start
        self._open_weights -= flow.weight
        del self.flows[flow.tenant]

    def _place(self, flow: _Flow[Item]) -> tuple[float, int, _Flow[Item]]:
        self._number += 1
        return flow.start, self._number, flow

    def _left(self, flow: _Flow[Item], cost: float) -> None:
        self._count(flow, -1, -cost)
        if not flow.waiting:
            flow.cost = 0.0
            self._weights -= flow.weight

    def _count(self, flow: _Flow[Item], waiting: int, cost: float) -> None:
        self.waiting += waiting
        self.cost += cost
        flow.cost += cost
