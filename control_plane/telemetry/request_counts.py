"""Request counters of one process, as values that workers send to their parent, which sums them for the
metrics page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from enum import StrEnum
from itertools import zip_longest
from operator import add
from typing import TypeVar

from control_plane.core.infer_call import CacheStatus, Frontend, Outcome
from control_plane.telemetry.shared_cache_counts import SharedCacheCounts
from control_plane.telemetry.shed_reason import ShedReason

BUCKETS_S = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.06, 0.125, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Upper bounds of the histogram's buckets, in seconds; one more bucket holds the rest."""


@dataclass(frozen=True, slots=True)
class OutcomeCount:
    """Count of a model's requests with one outcome."""

    model: str
    frontend: Frontend
    outcome: Outcome
    count: int


@dataclass(frozen=True, slots=True)
class DurationHistogram:
    """Histogram of the durations of a model's requests: counts by bucket (not cumulative), and their sum in
    seconds.
    """

    model: str
    frontend: Frontend
    buckets: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class ShedCount:
    """Count of a tenant's requests that were shed for one reason."""

    tenant: str
    reason: ShedReason
    count: int


@dataclass(frozen=True, slots=True)
class CacheStatusCount:
    """Count of a model's responses with one cache status."""

    model: str
    status: CacheStatus
    count: int


@dataclass(frozen=True, slots=True)
class CacheSize:
    """Size of the response cache in memory (its first level), and evictions from it so far."""

    entries: int = 0
    held_bytes: int = 0
    evicted: int = 0
    """Entries evicted to make room; expired ones are not counted."""


@dataclass(frozen=True, slots=True)
class FleetRefusalCount:
    """Count of a fleet's requests that were refused for one reason, because their model could not be loaded
    in time.
    """

    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class RetryCount:
    """Count of requests of one kind that were to be sent to servers beyond what clients asked for, by whether the
    retry budget allowed it.
    """

    kind: str
    is_allowed: bool
    count: int


@dataclass(frozen=True, slots=True)
class QueryOfDeathCounts:
    """Counts of requests under which processes died."""

    found: int = 0
    refused: int = 0
    """Requests that were refused because of that."""


class Copied(StrEnum):
    """What became of a request that was to be copied to a rollout's next model; label `result` of the metrics."""

    AGREES = "agrees"
    """Its answer agrees with stable's, by the rollout's agreement."""
    DIFFERS = "differs"
    ANSWERED = "answered"
    """It was answered, and the answers were not compared."""
    FAILED = "failed"
    UNCOUNTED = "uncounted"
    """The next model was loading or busy, which says nothing of it."""
    UNREADABLE = "unreadable"
    """A defect of the gateway's."""
    BUSY = "busy"
    """Not sent: no copy of the next model was idle."""
    OVER_BUDGET = "over_budget"
    """Not sent: the retry budget was spent."""
    DROPPED = "dropped"
    """Not sent: too many waited, or it had waited for too long."""
    TOO_LARGE = "too_large"
    """Not sent: the request or its answer is too large to be held."""


@dataclass(frozen=True, slots=True)
class CopiedCount:
    """Count of requests that were to be copied, by what became of them."""

    result: Copied
    count: int


@dataclass(frozen=True, slots=True)
class HedgeCount:
    """Count of a fleet's requests that were late enough to be hedged, by what became of that."""

    result: str
    """Of `fleet/domain/counts.Hedge`."""
    count: int


@dataclass(frozen=True, slots=True)
class WaitHistogram:
    """Histogram of the time that a fleet's requests waited for their model.

    Counts by bucket of `fleet/domain/counts` (not cumulative), and their sum in seconds.
    """

    buckets: tuple[int, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """All request counters of a process since its start; `in_flight` and what the cache holds are present
    values.
    """

    ended: tuple[OutcomeCount, ...] = ()
    took: tuple[DurationHistogram, ...] = ()
    in_flight: int = 0
    shed: tuple[ShedCount, ...] = ()
    unmetered: int = 0
    """Requests whose usage was dropped, since too many sums waited to be written."""
    cached: tuple[CacheStatusCount, ...] = ()
    holding: CacheSize = CacheSize()
    shared_cache: SharedCacheCounts | None = None
    """None without a shared cache (`cache_url`)."""
    shared_cache_away: int = 0
    """Processes whose circuit breaker for the shared cache is open, so that they do not use it now."""
    shared_cache_answer_s: float = 0.0
    """Present response time of the shared cache, in the process where it is longest; 0.0 while no process
    uses it."""
    refused: tuple[FleetRefusalCount, ...] = ()
    waited: WaitHistogram = WaitHistogram()
    retries: tuple[RetryCount, ...] = ()
    queries_of_death: QueryOfDeathCounts = QueryOfDeathCounts()
    hedges: tuple[HedgeCount, ...] = ()
    hedged_units: float = 0.0
    """Compute units that the second sends of hedged requests were expected to take."""
    copied: tuple[CopiedCount, ...] = ()

    def retired(self) -> RequestCounts:
        """Return the counts of a process that has ended: counters stay, so that they never fall; present
        values are 0.
        """
        return replace(self, in_flight=0, shared_cache_away=0, shared_cache_answer_s=0.0, holding=CacheSize(evicted=self.holding.evicted))


def total(parts: Iterable[RequestCounts]) -> RequestCounts:
    """Sum the counts of several processes."""
    ended: dict[tuple[str, Frontend, Outcome], int] = {}
    took: dict[tuple[str, Frontend], DurationHistogram] = {}
    shed: Counter[tuple[str, ShedReason]] = Counter()
    cached: Counter[tuple[str, CacheStatus]] = Counter()
    refused: Counter[str] = Counter()
    hedges: Counter[str] = Counter()
    hedged_units = 0.0
    waited = WaitHistogram()
    retries: Counter[tuple[str, bool]] = Counter()
    queries_of_death = QueryOfDeathCounts()
    copied: Counter[Copied] = Counter()
    holding, shared_cache = CacheSize(), None
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
        queries_of_death = _sum(queries_of_death, part.queries_of_death)
        for one_kind in part.retries:
            retries[one_kind.kind, one_kind.is_allowed] += one_kind.count
        hedged_units += part.hedged_units
        for one_copied in part.copied:
            copied[one_copied.result] += one_copied.count
        for one_result in part.hedges:
            hedges[one_result.result] += one_result.count
        for one_reason in part.refused:
            refused[one_reason.reason] += one_reason.count
        for turned_away in part.shed:
            shed[turned_away.tenant, turned_away.reason] += turned_away.count
        for each in part.ended:
            key = (each.model, each.frontend, each.outcome)
            ended[key] = ended.get(key, 0) + each.count
        for one in part.took:
            took[one.model, one.frontend] = _add(took.get((one.model, one.frontend)), one)
    return RequestCounts(
        tuple(OutcomeCount(*key, count) for key, count in ended.items()),
        tuple(took.values()),
        in_flight,
        tuple(ShedCount(*key, count) for key, count in shed.items()),
        unmetered,
        tuple(CacheStatusCount(*key, count) for key, count in cached.items()),
        holding,
        shared_cache,
        away,
        answer_s,
        tuple(FleetRefusalCount(*each) for each in refused.items()),
        waited,
        tuple(RetryCount(*key, count) for key, count in retries.items()),
        queries_of_death,
        tuple(HedgeCount(*each) for each in hedges.items()),
        hedged_units,
        tuple(CopiedCount(*each) for each in copied.items()),
    )


def _sum_of_waits(one: WaitHistogram, other: WaitHistogram) -> WaitHistogram:
    buckets = tuple(map(sum, zip_longest(one.buckets, other.buckets, fillvalue=0)))
    return WaitHistogram(buckets, one.seconds + other.seconds)


SumT = TypeVar("SumT", CacheSize, QueryOfDeathCounts, SharedCacheCounts)


def _sum(one: SumT, other: SumT) -> SumT:
    """Add two dataclasses of numbers field by field."""
    return type(one)(*map(add, astuple(one), astuple(other)))


def _add(sum_so_far: DurationHistogram | None, more: DurationHistogram) -> DurationHistogram:
    if sum_so_far is None:
        return more
    buckets = tuple(one + other for one, other in zip(sum_so_far.buckets, more.buckets, strict=True))
    return replace(more, buckets=buckets, seconds=sum_so_far.seconds + more.seconds)
