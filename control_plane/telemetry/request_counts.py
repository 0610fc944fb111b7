"""What a process has counted of the requests it answered, as it travels between processes and is summed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from itertools import zip_longest
from operator import add
from typing import TypeVar

from control_plane.core.infer_call import CacheStatus, Door, Outcome
from control_plane.telemetry.shared_cache_counts import SharedCacheCounts
from control_plane.telemetry.shed_reason import ShedReason

BUCKETS_S = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.06, 0.125, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Upper bounds of the durations that are counted together; one more bucket holds the rest."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How many requests for a model ended one way."""

    model: str
    door: Door
    outcome: Outcome
    count: int


@dataclass(frozen=True, slots=True)
class Took:
    """How long requests for a model took: how many by bucket (not accumulated), and seconds in all."""

    model: str
    door: Door
    buckets: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Shed:
    """How many requests of a tenant were turned away for one reason."""

    tenant: str
    reason: ShedReason
    count: int


@dataclass(frozen=True, slots=True)
class Cached:
    """What the response cache did for how many answers of a model."""

    model: str
    status: CacheStatus
    count: int


@dataclass(frozen=True, slots=True)
class CacheHolding:
    """What is in the response cache's first level now, and how much has been."""

    entries: int = 0
    held_bytes: int = 0
    evicted: int = 0
    """To make room; what has expired is not counted."""


@dataclass(frozen=True, slots=True)
class Refused:
    """How many requests of a fleet were refused since one thing stood in their model's way."""

    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class Waited:
    """How long requests of a fleet waited for their model: how many by bucket of `fleet/domain/counts` (not
    accumulated), and seconds in all."""

    buckets: tuple[int, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """Since the process began, but for `in_flight`, which is what is being answered now."""

    ended: tuple[Ended, ...] = ()
    took: tuple[Took, ...] = ()
    in_flight: int = 0
    shed: tuple[Shed, ...] = ()
    unmetered: int = 0
    """Requests whose usage was dropped."""
    cached: tuple[Cached, ...] = ()
    holding: CacheHolding = CacheHolding()
    shared_cache: SharedCacheCounts | None = None
    """None where there is none."""
    shared_cache_away: int = 0
    """Processes that do not ask it now, as it does not answer them."""
    shared_cache_answer_s: float = 0.0
    """What its answers take now, in the process where they take longest; 0.0 where nobody asks it."""
    refused: tuple[Refused, ...] = ()
    waited: Waited = Waited()

    def retired(self) -> RequestCounts:
        """What is left to count when the process has ended: nothing is in flight, and nothing is held."""
        return replace(
            self, in_flight=0, shared_cache_away=0, shared_cache_answer_s=0.0, holding=CacheHolding(evicted=self.holding.evicted)
        )


def total(parts: Iterable[RequestCounts]) -> RequestCounts:
    """The sum of what several processes have counted."""
    ended: dict[tuple[str, Door, Outcome], int] = {}
    took: dict[tuple[str, Door], Took] = {}
    shed: Counter[tuple[str, ShedReason]] = Counter()
    cached: Counter[tuple[str, CacheStatus]] = Counter()
    refused: Counter[str] = Counter()
    waited = Waited()
    holding, shared_cache = CacheHolding(), None
    in_flight = unmetered = away = 0
    answer_s = 0.0
    for part in parts:
        in_flight += part.in_flight
        unmetered += part.unmetered
        away += part.shared_cache_away
        answer_s = max(answer_s, part.shared_cache_answer_s)
        holding = _sum(holding, part.holding)
        if part.shared_cache is not None:
            shared_cache = part.shared_cache if shared_cache is None else _sum(shared_cache, part.shared_cache)
        for one_status in part.cached:
            cached[one_status.model, one_status.status] += one_status.count
        waited = _sum_of_waits(waited, part.waited)
        for one_reason in part.refused:
            refused[one_reason.reason] += one_reason.count
        for turned_away in part.shed:
            shed[turned_away.tenant, turned_away.reason] += turned_away.count
        for each in part.ended:
            key = (each.model, each.door, each.outcome)
            ended[key] = ended.get(key, 0) + each.count
        for one in part.took:
            took[one.model, one.door] = _add(took.get((one.model, one.door)), one)
    return RequestCounts(
        tuple(Ended(*key, count) for key, count in ended.items()),
        tuple(took.values()),
        in_flight,
        tuple(Shed(*key, count) for key, count in shed.items()),
        unmetered,
        tuple(Cached(*key, count) for key, count in cached.items()),
        holding,
        shared_cache,
        away,
        answer_s,
        tuple(Refused(*each) for each in refused.items()),
        waited,
    )


def _sum_of_waits(one: Waited, other: Waited) -> Waited:
    buckets = tuple(map(sum, zip_longest(one.buckets, other.buckets, fillvalue=0)))
    return Waited(buckets, one.seconds + other.seconds)


SumT = TypeVar("SumT", CacheHolding, SharedCacheCounts)


def _sum(one: SumT, other: SumT) -> SumT:
    """Of two dataclasses of numbers, field by field."""
    return type(one)(*map(add, astuple(one), astuple(other)))


def _add(sum_so_far: Took | None, more: Took) -> Took:
    if sum_so_far is None:
        return more
    buckets = tuple(one + other for one, other in zip(sum_so_far.buckets, more.buckets, strict=True))
    return replace(more, buckets=buckets, seconds=sum_so_far.seconds + more.seconds)
