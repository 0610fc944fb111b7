"""What was used: the sums that are kept, and the event of one request that a request log has."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from control_plane.core.infer_call import Door, Outcome

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
    compute_units: float | None
    """As far as they are known when it ends (`metering/compute_costs`); None: not at all."""
    cache_hit: bool = False
    server: str = ""
    """That computed it, or was to; empty where none was asked."""
    status: int | None = None
    """That the caller was told: HTTP's, or the code of gRPC, also of a stream's request, which is told in words only. None: it had left."""
    error: str = ""
    """The text of that status, cut."""
    request_id: str = ""
    """The caller's own, cut: the request's `id`, else the header `x-request-id`."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a caller was told in the end."""

    status: int | None
    """As `UsageEvent` has it."""
    error: str = ""


@dataclass(frozen=True, slots=True)
class UsageKey:
    """What is summed together."""

    day: str
    """ISO 8601, in UTC."""
    tenant: str
    model: str


@dataclass(frozen=True, slots=True)
class Usage:
    """The sum over all requests of a key."""

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


@dataclass(frozen=True, slots=True)
class UsageBatch:
    """What is added to the kept sums in one step, once, however often it is sent."""

    id: str
    """Of no other batch, ever."""
    sums: tuple[tuple[UsageKey, Usage], ...]

    @property
    def requests(self) -> int:
        """All that it counts, however they ended."""
        return sum(usage.requests + usage.failed + usage.refused for _, usage in self.sums)


DAY_S = 86_400.0
MOST = 2**32
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


def day_of(ended_s: float) -> str:
    """The day that a moment in seconds since 1970 lies in: ISO 8601, in UTC."""
    return datetime.fromtimestamp(ended_s, UTC).date().isoformat()


def storable_key(day: str, tenant: str, model: str) -> UsageKey:
    """As every store can hold it, since it would be sent what it cannot hold for ever: without halves of surrogate pairs."""
    return UsageKey(day, _storable(tenant), _storable(model))


def _storable(name: str) -> str:
    """A token's claims may hold what UTF-8 cannot."""
    return name.encode("utf-8", "replace").decode()
