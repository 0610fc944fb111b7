"""What a process has counted of the requests it answered, as it travels between processes and is summed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from control_plane.domain.inference import Door, Outcome
from control_plane.domain.shed_reason import ShedReason

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
class RequestCounts:
    """Since the process began, but for `in_flight`, which is what is being answered now."""

    ended: tuple[Ended, ...] = ()
    took: tuple[Took, ...] = ()
    in_flight: int = 0
    shed: tuple[Shed, ...] = ()
    unmetered: int = 0
    """Events of usage that were dropped."""

    def retired(self) -> RequestCounts:
        """What is left to count when the process has ended: nothing is in flight."""
        return replace(self, in_flight=0)


def total(parts: Iterable[RequestCounts]) -> RequestCounts:
    """The sum of what several processes have counted."""
    ended: dict[tuple[str, Door, Outcome], int] = {}
    took: dict[tuple[str, Door], Took] = {}
    shed: Counter[tuple[str, ShedReason]] = Counter()
    in_flight = unmetered = 0
    for part in parts:
        in_flight += part.in_flight
        unmetered += part.unmetered
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
    )


def _add(sum_so_far: Took | None, more: Took) -> Took:
    if sum_so_far is None:
        return more
    buckets = tuple(one + other for one, other in zip(sum_so_far.buckets, more.buckets, strict=True))
    return replace(more, buckets=buckets, seconds=sum_so_far.seconds + more.seconds)
