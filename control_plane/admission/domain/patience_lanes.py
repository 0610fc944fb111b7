"""Lanes of one tenant's waiting requests, by how long each may take. Pure; a flow of `admission/domain/fair_queue` has one.

In one line, requests that may wait for seconds fill the queue up to their own deadlines, and each that may not is
refused behind them: under overload those with short deadlines got nothing at all. In lanes of their own each
kind gets an equal share of what its tenant gets, or as much as it asks for (start-time fair queuing, as among tenants).
The order by deadline alone (EDF) would not do: what has waited longest is due all at once, and expires. Nor may callers
who leave long before their deadlines take a share for what is computed in vain: their lane gets the less, the more of
its callers leave.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from control_plane.admission.domain.leaving import LeavingCallers

Item = TypeVar("Item", bound=Hashable)

# Upper bounds of the lanes but the last: requests in one lane have deadlines of one order of magnitude. None is a
# number that callers choose, whose requests would be in two lanes for what they have waited elsewhere.
_UP_TO_S = (0.17, 0.7, 2.7, 11.0, 44.0)

# Weight of the newest request in the lanes' shares. Lower than elsewhere: a lane is filled up to its deadlines whenever
# its share seems to be larger than it is.
_NEWEST = 0.02

# Least weight of a lane, all of whose callers leave: enough to see that they no longer do.
_LEAST_WEIGHT = 0.03

# Weight of the newest request in the part whose callers leave. Higher than elsewhere: a lane may hold a few requests only.
_NEWEST_LEAVER = 0.2


def lane_of(allowed_s: float) -> int:
    """Lane of a request that may take `allowed_s` until its answer; 0 is the most urgent."""
    return bisect_left(_UP_TO_S, allowed_s)


class _Lane(Generic[Item]):
    """Requests with deadlines of one order of magnitude, and the share of their tenant's turns that they get."""

    __slots__ = ("cost", "leaving", "served", "start", "waiting")

    def __init__(self) -> None:
        self.waiting: OrderedDict[Item, float] = OrderedDict()
        """Cost of each request, oldest first. A plain dict would take longer and longer to find its first key
        after removals.
        """
        self.cost = 0.0
        self.start = 0.0
        """Virtual start time of the lane's next request."""
        self.served = 0.0
        """Exponentially weighted mean of what it got of each turn of the tenant's."""
        self.leaving = LeavingCallers(_NEWEST_LEAVER)

    @property
    def weight(self) -> float:
        return max(_LEAST_WEIGHT, 1.0 - self.leaving.part)

    def take(self, item: Item) -> float:
        cost = self.waiting.pop(item)
        self.cost = self.cost - cost if self.waiting else 0.0  # exactly, without the rounding errors of the sum
        return cost


class PatienceLanes(Generic[Item]):
    """Fair queue of one tenant's requests at one priority."""

    __slots__ = ("_lanes", "_now", "_where")

    def __init__(self) -> None:
        self._lanes: dict[int, _Lane[Item]] = {}
        self._where: dict[Item, _Lane[Item]] = {}
        self._now = 0.0
        """Virtual time: the start of the request that was served last."""

    def __len__(self) -> int:
        return len(self._where)

    @property
    def next_cost(self) -> float:
        """Cost of the request whose turn it is; one must be waiting."""
        return next(iter(self._first().waiting.values()))

    def push(self, item: Item, number: int, cost: float) -> None:
        """Enqueue a request in lane `number`."""
        lane = self._lanes.get(number)
        if lane is None:
            lane = self._lanes[number] = _Lane()
        if not lane.waiting:
            lane.start = max(lane.start, self._now)
        lane.waiting[item] = cost
        lane.cost += cost
        self._where[item] = lane

    def pop(self) -> tuple[Item, float]:
        """Dequeue the request whose turn it is; return it and its cost."""
        lane = self._first()
        item = next(iter(lane.waiting))
        self._now = lane.start
        lane.start += (cost := self.remove(item)) / lane.weight
        for each in self._lanes.values():
            each.served += _NEWEST * ((cost if each is lane else 0.0) - each.served)
        return item, cost

    def remove(self, item: Item) -> float:
        """Remove a request that no longer waits; return its cost."""
        return self._where.pop(item).take(item)

    def ended(self, number: int, cost: float, *, has_left: bool) -> None:
        """Note that a request of lane `number` has been computed, whose caller had left or not."""
        if (lane := self._lanes.get(number)) is not None:
            lane.leaving.ended(cost, has_left=has_left)

    def newest(self) -> Item:
        """The newest request of the longest lane, which has best make room; one must be waiting."""
        return next(reversed(self._longest().waiting))

    def displaced_by(self, number: int) -> Item | None:
        """The request that makes room for one that comes in lane `number`; None where that lane would be the longest."""
        if not self._where:
            return None
        own, longest = self._lanes.get(number), self._longest()
        if len(longest.waiting) <= (0 if own is None else len(own.waiting)) + 1:
            return None
        return next(reversed(longest.waiting))

    @property
    def cost(self) -> float:
        """Cost of all that wait."""
        return sum(lane.cost for lane in self._lanes.values())

    def ahead(self, number: int) -> float:
        """Estimate the cost of those that are served before a request that comes now, also of those that come later:
        while its own lane is served the others get what they have got of late."""
        own = self._lanes.get(number)
        others = [lane for lane in self._lanes.values() if lane is not own]
        if not others:
            return 0.0 if own is None else own.cost
        before, start, served, weight = (0.0, 0.0, 0.0, 1.0) if own is None else (own.cost, own.start, own.served, own.weight)
        share = served / total if (total := served + sum(lane.served for lane in others)) else 0.0
        fair = weight / (weight + sum(lane.weight for lane in others))  # the least that it gets, whatever it has got of late
        turns = max(0.0, start - self._now) * weight + before  # what its lane gets until it is served
        return before + turns * (1 / max(share, fair) - 1)

    def _longest(self) -> _Lane[Item]:
        return max(self._lanes.values(), key=lambda lane: len(lane.waiting))

    def _first(self) -> _Lane[Item]:
        """The lane whose turn it is; of several the most urgent."""
        lanes = self._lanes
        if len(lanes) == 1:
            return next(iter(lanes.values()))
        return lanes[min((lane.start, number) for number, lane in lanes.items() if lane.waiting)[1]]
