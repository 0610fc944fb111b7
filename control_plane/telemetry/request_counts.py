"""Request counters of one process, as values that workers send to their parent, which sums them for the
metrics page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from enum import StrEnum
from functools import partial, reduce
from itertools import chain, zip_longest
from operator import attrgetter
from typing import Any, TypeVar

from control_plane.core.infer_call import CacheStatus, Frontend, Outcome
from control_plane.telemetry.shared_cache_counts import SharedCacheCounts
from control_plane.telemetry.shed_reason import ShedReason
from control_plane.telemetry.work_counts import WorkCounts, total_work

BUCKETS_S = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.06, 0.125, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Upper bounds of the histogram's buckets, in seconds; one more bucket holds the rest."""

OTHER = "(other)"
"""Label value for all models or tenants beyond the bound; no model or tenant can have this name."""


@dataclass(frozen=True, slots=True)
class OutcomeCount:
    """Count of a model's requests with one outcome."""

    model: str
    frontend: Frontend
    outcome: Outcome
    count: int


@dataclass(frozen=True, slots=True)
class ComputedCount:
    """Count of a model's requests that took a server's time, or would have: none that the cache answered. A call of embeddings is
    one, and so is each request of a stream.
    """

    model: str
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
class UnitsCount:
    """Compute units that a tenant's requests and jobs have used."""

    tenant: str
    count: float


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
    """Outcome of copying a request to a route's mirror, or to the next model of its rollout; label `result` of the metrics."""

    AGREES = "agrees"
    """The copy's answer agrees with the original's, by the rollout's agreement."""
    DIFFERS = "differs"
    ANSWERED = "answered"
    """The copy was answered, and the answers were not compared."""
    FAILED = "failed"
    UNCOUNTED = "uncounted"
    """The model was loading, busy or is not there, which says nothing of it."""
    UNREADABLE = "unreadable"
    """A defect of the gateway's."""
    BUSY = "busy"
    """Not sent: no replica of the model was idle, or enough copies are under way to it."""
    OVER_BUDGET = "over_budget"
    """Not sent: the retry budget was spent."""
    DROPPED = "dropped"
    """Not sent: too many waited, or it had waited for too long."""
    TOO_LARGE = "too_large"
    """Not sent: the request or its answer is too large to be held."""


@dataclass(frozen=True, slots=True)
class CopiedCount:
    """Count of a route's requests that were to be copied to a model, by what became of them."""

    route: str
    model: str
    """Model that they were copied to, as `model@version` where a version is named."""
    result: Copied
    count: int


class Half(StrEnum):
    """Half of a pair of equal requests; label `half` of the metrics."""

    ORIGINAL = "original"
    """A caller's request."""
    COPY = "copy"


@dataclass(frozen=True, slots=True)
class CopiedDurations:
    """Histogram of the durations of copied requests that both models have answered: counts by bucket (not cumulative), and their
    sum in seconds.
    """

    route: str
    model: str
    """Model that they were copied to."""
    half: Half
    buckets: tuple[int, ...]
    seconds: float


BUDGET_RESULTS = {"latency": ("within", "late"), "cost": ("within", "over", "unknown")}
"""Results of answers to requests with a budget, by kind of the budget; `unknown`: nobody knew what they would cost."""


@dataclass(frozen=True, slots=True)
class BudgetCount:
    """Count of answers to requests with a budget, by what was chosen and by whether it kept to the budget."""

    budget: str
    """Kind of the budget, of `BUDGET_RESULTS`."""
    route: str
    model: str
    result: str
    count: int


@dataclass(frozen=True, slots=True)
class DeliveryCount:
    """Count of attempts to deliver what jobs have come to, by what became of them."""

    kind: str
    """Kind of the delivery: a value of `jobs/domain/delivery.DeliveryKind`."""
    result: str
    """State that the attempt led to, of `jobs/domain/delivery.DeliveryState`: `pending` for one that is repeated."""
    count: int


@dataclass(frozen=True, slots=True)
class EventCount:
    """Count of events for subscribers, by what became of them."""

    stream: str
    """Name of the stream: a value of `events/domain/stream.Stream`."""
    is_published: bool
    """Whether they were published, to Redis; else they were lost to subscribers."""
    count: int


@dataclass(frozen=True, slots=True)
class RegionCount:
    """Count of requests that were sent to another region, by what became of them."""

    region: str
    result: str
    """A value of `regions/domain/verdict.RegionVerdict`."""
    count: int


@dataclass(frozen=True, slots=True)
class HedgeCount:
    """Count of a fleet's requests that were late enough to be hedged, by what became of that."""

    result: str
    """A value of `fleet/domain/counts.Hedge`."""
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
    loop_late_s: float = 0.0
    """Most lag of the event loop in the last ten seconds (`concurrency/loop_lag`), in the process where it is longest."""
    shed: tuple[ShedCount, ...] = ()
    computed: tuple[ComputedCount, ...] = ()
    units: tuple[UnitsCount, ...] = ()
    unmetered: int = 0
    """Requests whose usage was dropped, since too many sums waited to be written."""
    spans_lost: int = 0
    """Spans that could not be sent to the collector (`otlp_endpoint`)."""
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
    copied_took: tuple[CopiedDurations, ...] = ()
    budgets: tuple[BudgetCount, ...] = ()
    deliveries: tuple[DeliveryCount, ...] = ()
    events: tuple[EventCount, ...] = ()
    work: tuple[WorkCounts, ...] = ()
    regions: tuple[RegionCount, ...] = ()
    guests: int = 0
    """Requests of other regions that came here."""

    def retired(self) -> RequestCounts:
        """Return the counts of a process that has ended: counters stay, so that they never fall; present
        values are 0.
        """
        holding = CacheSize(evicted=self.holding.evicted)
        return replace(self, in_flight=0, loop_late_s=0.0, shared_cache_away=0, shared_cache_answer_s=0.0, holding=holding)


def total(parts: Iterable[RequestCounts]) -> RequestCounts:
    """Sum the counts of several processes."""
    parts = list(parts) or [RequestCounts()]
    return RequestCounts(**{each.name: _sum_of(each.name, [getattr(part, each.name) for part in parts]) for each in fields(RequestCounts)})


def _sum_of(name: str, values: list[Any]) -> Any:
    """Sum one field of `RequestCounts`: as `_SUMS` says, else rows by their `count`, and numbers."""
    return _SUMS.get(name, _sum_rows if isinstance(values[0], tuple) else sum)(values)


def _sum_rows(parts: Iterable[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Add the counts of rows of one kind that are equal but for their `count`, the last field."""
    rows = list(chain.from_iterable(parts))
    sums: Counter[tuple[Any, ...]] = Counter()
    for *key, count in _values(rows):
        sums[tuple(key)] += count
    return tuple(type(rows[0])(*key, count) for key, count in sums.items())


def _sum_histograms(parts: Iterable[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Add histograms of one kind that are equal but for `buckets` and `seconds`, the last fields."""
    rows = list(chain.from_iterable(parts))
    sums: dict[tuple[Any, ...], Any] = {}
    for row, (*key, _, _) in zip(rows, _values(rows), strict=True):
        sums[tuple(key)] = row if (so_far := sums.get(tuple(key))) is None else _add(so_far, row)
    return tuple(sums.values())


def _values(rows: Sequence[Any]) -> Iterable[tuple[Any, ...]]:
    """Yield the fields of dataclasses of one kind, without the copies that `astuple` makes."""
    return map(attrgetter(*rows[0].__match_args__), rows) if rows else ()


HistogramT = TypeVar("HistogramT", DurationHistogram, CopiedDurations, WaitHistogram)


def _add(one: HistogramT, other: HistogramT) -> HistogramT:
    buckets = tuple(map(sum, zip_longest(one.buckets, other.buckets, fillvalue=0)))
    return replace(one, buckets=buckets, seconds=one.seconds + other.seconds)


def _sum_numbers(values: Iterable[Any]) -> Any:
    """Add dataclasses of numbers field by field, without those that are None; None where all are."""
    present = [value for value in values if value is not None]
    return type(present[0])(*map(sum, zip(*map(astuple, present), strict=True))) if present else None


_SUMS: Mapping[str, Callable[[list[Any]], Any]] = {
    "took": _sum_histograms,
    "copied_took": _sum_histograms,
    "waited": partial(reduce, _add),
    "work": lambda parts: total_work(chain.from_iterable(parts)),
    "holding": _sum_numbers,
    "queries_of_death": _sum_numbers,
    "shared_cache": _sum_numbers,
    "loop_late_s": max,
    "shared_cache_answer_s": max,
}
"""How those fields of `RequestCounts` are summed that are neither rows with a `count` nor numbers to be added."""
