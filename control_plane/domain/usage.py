"""What was used: one event per request, and the sums of them that are kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from control_plane.domain.inference import Door, Outcome

BATCH_IDS_KEPT_S = 4 * 86_400
"""How long a store knows the batches it was sent: one that waits on disk over a long weekend is still counted once."""


EVERY_DAY = ("0001-01-01", "9999-12-31")
"""The first and the last day that there can be."""


@dataclass(slots=True)
class UsageEvent:
    """One request that was answered or refused. Never changed, but not frozen: that would cost each request a microsecond more."""

    ended_s: float
    """In seconds since 1970."""
    tenant: str
    key_id: str
    route: str
    """The name that the caller used."""
    model: str
    """The model behind it; the same name where there is no route."""
    door: Door
    outcome: Outcome
    duration_s: float
    rows: int
    """Of the batch; 1 for a model without a batch dimension, 0 for what was refused before it was read."""
    elements: int
    """Numbers and strings in all inputs."""
    compute_units: float
    cache_hit: bool = False


@dataclass(frozen=True, slots=True)
class UsageBatch:
    """Events that are stored together, once, however often they are sent."""

    id: str
    """Of no other batch, ever."""
    events: tuple[UsageEvent, ...]


@dataclass(frozen=True, slots=True)
class UsageKey:
    """What is summed together."""

    day: str
    """ISO 8601, in UTC."""
    tenant: str
    model: str


@dataclass(frozen=True, slots=True)
class Usage:
    """The sum over all events of a key."""

    requests: int = 0
    """Answered with success."""
    failed: int = 0
    """Answered with an error of the model's or the server's, or abandoned."""
    refused: int = 0
    """Not sent to a model: invalid, not allowed, beyond a limit."""
    rows: int = 0
    elements: int = 0
    compute_units: float = 0.0
    cache_hits: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.requests + other.requests,
            self.failed + other.failed,
            self.refused + other.refused,
            self.rows + other.rows,
            self.elements + other.elements,
            self.compute_units + other.compute_units,
            self.cache_hits + other.cache_hits,
        )


_DAY_S = 86400
_MOST = 2**32
"""More of one request no body has room for; and sums of what was made up would soon be more than stores can add up."""

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
"""Which field of `Usage` a request is counted in."""


def usage_of(events: Sequence[UsageEvent]) -> Usage:
    """Events as one sum."""
    counted = Counter([COUNTED_AS[event.outcome] for event in events])
    return Usage(
        requests=counted["requests"],
        failed=counted["failed"],
        refused=counted["refused"],
        rows=sum([min(event.rows, _MOST) for event in events]),
        elements=sum([min(event.elements, _MOST) for event in events]),
        compute_units=sum([event.compute_units for event in events], 0.0),
        cache_hits=sum([event.cache_hit for event in events]),
    )


def day_of(ended_s: float) -> str:
    """The day that a moment in seconds since 1970 lies in: ISO 8601, in UTC."""
    return datetime.fromtimestamp(ended_s, UTC).date().isoformat()


def _storable(name: str) -> str:
    """Without halves of surrogate pairs, which a token's claims may hold and UTF-8 cannot."""
    return name.encode("utf-8", "replace").decode()


def sums_of(events: Iterable[UsageEvent]) -> dict[UsageKey, Usage]:
    """Events summed by key; always something that a store can hold, since it would be sent the same batch for ever."""
    groups: dict[tuple[int, str, str], list[UsageEvent]] = {}
    for event in events:
        groups.setdefault((int(event.ended_s // _DAY_S), event.tenant, event.model), []).append(event)
    sums: dict[UsageKey, Usage] = {}
    for (_, tenant, model), group in groups.items():
        key = UsageKey(day_of(group[0].ended_s), _storable(tenant), _storable(model))
        sums[key] = sums.get(key, Usage()) + usage_of(group)
    return sums


@dataclass(frozen=True, slots=True)
class Price:
    """What a compute unit costs from a moment on, until a later price for the same models and tenant."""

    name: str
    from_s: float
    per_unit: float
    currency: str
    models: str = "*"
    """A glob."""
    tenant: str = ""
    """Empty: for all who have no price of their own."""
