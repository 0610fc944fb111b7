"""Values of metering: usage sums, batches of them, and the event of one request for the request log."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import UTC, datetime
from operator import attrgetter
from typing import Literal

from control_plane.core.infer_call import Frontend, Outcome

BATCH_IDS_KEPT_S = 4 * 86_400
"""How long a store remembers ids of batches: one that waits on disk over a long weekend is still counted only
once."""


EVERY_DAY = ("0001-01-01", "9999-12-31")
"""First and last possible day."""


@dataclass(slots=True)
class UsageEvent:
    """A request that was answered or refused, as the request log records it.

    Never modified once it is logged, but not a frozen dataclass: making one would cost each request a microsecond more.
    """

    ended_s: float
    """Time of its end, in seconds since 1970."""
    tenant: str
    key_id: str
    route: str
    """The name that the caller used."""
    model: str
    """The model behind the route; the same name where there is no route."""
    frontend: Frontend
    outcome: Outcome
    duration_s: float
    rows: int
    """Batch size; 1 for a model without a batch dimension, 0 for a request that was refused before it was
    read."""
    elements: int
    """Numbers and strings in all inputs."""
    compute_units: float | None
    """Units known at its end (`metering/compute_costs`); None if they are charged later, by Triton's
    statistics."""
    cache_hit: bool = False
    server: str = ""
    """Server that computed it or was to; empty where none was asked."""
    status: int | None = None
    """HTTP status or gRPC code sent to the caller; a request of a stream has one too, though the stream sends
    only its text. None if the caller had left."""
    error: str = ""
    """Error text sent to the caller, cut."""
    request_id: str = ""
    """The caller's id of the request, cut: the request's `id`, else the header `x-request-id`."""
    number: int = 0
    """Number of the request in its process, from 1 on, given when it is logged."""


@dataclass(frozen=True, slots=True)
class ClientStatus:
    """Status and error text sent to a caller."""

    status: int | None
    """HTTP status or gRPC code; None if the caller had left."""
    error: str = ""


@dataclass(frozen=True, slots=True)
class UsageKey:
    """Key of a usage sum."""

    day: str
    """Day in UTC, as ISO 8601."""
    tenant: str
    model: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Sums over the requests of one key."""

    requests: int = 0
    """Requests answered with success."""
    failed: int = 0
    """Requests that failed in the model or server, or that the caller abandoned."""
    refused: int = 0
    """Requests not sent to a model: invalid, not allowed, or beyond a limit."""
    rows: int = 0
    elements: int = 0
    compute_units: float = 0.0
    cache_hits: int = 0
    input_tokens: int = 0
    """Tokens that generative models read, of those that count them."""
    output_tokens: int = 0
    """Tokens that they generated, also for callers who left before the end."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.requests + other.requests,
            self.failed + other.failed,
            self.refused + other.refused,
            self.rows + other.rows,
            self.elements + other.elements,
            self.compute_units + other.compute_units,
            self.cache_hits + other.cache_hits,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
        )


@dataclass(frozen=True, slots=True)
class UsageBatch:
    """Usage sums that a store adds atomically and only once, however often they are sent."""

    id: str
    """Globally unique id, by which stores recognize a batch that they have counted."""
    sums: tuple[tuple[UsageKey, Usage], ...]

    @property
    def requests(self) -> int:
        """Number of requests in the batch, whatever their outcome."""
        return sum(usage.requests + usage.failed + usage.refused for _, usage in self.sums)


_key_fields, _usage_fields = (attrgetter(*(each.name for each in fields(kind))) for kind in (UsageKey, Usage))


def fields_of(key: UsageKey, usage: Usage) -> tuple[object, ...]:
    """Return the fields of a sum in the order in which they are declared, its key first."""
    return *_key_fields(key), *_usage_fields(usage)


KEEP_RECORDS = 100_000
"""Usage records that a store keeps for subscribers, unless told otherwise."""


@dataclass(frozen=True, slots=True)
class UsageRecord:
    """A sum of one batch as a store has added it, numbered in the order of adding, for those who follow usage."""

    number: int
    """From 1 on, without gaps."""
    id: str
    """Globally unique id: that of the batch, and the sum's place in it."""
    at_s: float
    """When it was added, in seconds since 1970."""
    key: UsageKey
    usage: Usage


DAY_S = 86_400.0
MOST = 2**32
"""Most rows or elements counted for one request: no body has room for more, and sums of invented numbers
would soon exceed what stores can add (64 bits)."""

COUNTED_AS: dict[Outcome, Literal["requests", "failed", "refused"]] = {
    Outcome.ANSWERED: "requests",
    Outcome.UPSTREAM_ERROR: "failed",
    Outcome.MODEL_NOT_FOUND: "failed",
    Outcome.REFUSED: "refused",
    Outcome.UNAVAILABLE: "failed",
    Outcome.DEADLINE_EXCEEDED: "failed",
    Outcome.ABANDONED: "failed",
    Outcome.FAILED: "failed",
}
"""Outcome -> field of `Usage` in which the request is counted."""


def day_of(ended_s: float) -> str:
    """Return the day (UTC, ISO 8601) of a time in seconds since 1970."""
    return datetime.fromtimestamp(ended_s, UTC).date().isoformat()


def first_kept_day(now_s: float, keep_days: int | None) -> str:
    """Return the first day whose usage is kept, of `keep_days` of which today is the last; None: all are kept."""
    return EVERY_DAY[0] if keep_days is None else day_of(now_s - (keep_days - 1) * DAY_S)


def make_storable_key(day: str, tenant: str, model: str) -> UsageKey:
    """Make a key that every store can hold, without lone surrogates; a store that cannot would be sent the
    batch for ever.
    """
    return UsageKey(day, _storable(tenant), _storable(model))


def _storable(name: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode but a token's claims may contain."""
    return name.encode("utf-8", "replace").decode()
