"""How many requests a tenant may send: a bucket that refills steadily; asked by `admission/admission`.

The generic cell rate algorithm (ITU-T I.371, annex A), which keeps a single number: when the bucket will be full again.
As that is a time and not a number of requests, it stays right when the limit changes meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf

Fields = tuple[tuple[str, str], ...]

# What adding and subtracting times may lose in a long run at the very rate, on a machine that has been up for weeks.
_ROUNDING_S = 1e-7

# How long a tenant that may send nothing is told to stay away.
_NEVER_S = 3600.0


@dataclass(frozen=True, slots=True)
class RateLimit:
    """What may be sent, without a `burst` one second's worth at once; a bucket holds one request at least."""

    requests_per_s: float
    burst: float


@dataclass(slots=True)
class RateState:
    """What has to be remembered between two requests. Never changed, but not frozen: each request makes one, and a decision."""

    full_at_s: float = -inf


@dataclass(slots=True)
class RateDecision:
    """Whether a request may go on, and what its answer says of the limit."""

    is_admitted: bool
    state: RateState
    remaining: int
    """Requests that could follow at once."""
    reset_s: float
    """Until the bucket is full."""
    retry_after_s: float
    """Until there is room for one; 0 for one that is admitted."""


def part_of_limit(requests_per_s: float, burst: int | None, *, share: float) -> RateLimit:
    """The limit of one process that has this share of its tenant's."""
    whole_burst = requests_per_s if burst is None else burst
    return RateLimit(requests_per_s * share, max(1.0, whole_burst * share))


def admit(state: RateState, limit: RateLimit, now_s: float) -> RateDecision:
    """Decide on a request that comes now; the decision's state counts it if it is admitted."""
    if limit.requests_per_s <= 0:
        return RateDecision(False, state, 0, _NEVER_S, _NEVER_S)
    interval_s = 1.0 / limit.requests_per_s
    refill_s = max(0.0, state.full_at_s - now_s)
    room_s = limit.burst * interval_s - refill_s - interval_s
    if room_s < -_ROUNDING_S:
        return RateDecision(False, state, 0, refill_s, -room_s)
    remaining = int(max(0.0, room_s + _ROUNDING_S) / interval_s)
    return RateDecision(True, RateState(now_s + refill_s + interval_s), remaining, refill_s + interval_s, 0.0)


@dataclass(frozen=True, slots=True)
class Drawn:
    """What came of drawing tokens from a bucket that several processes share."""

    granted: int
    debt_s: float
    """Until it is full."""


def draw(state: RateState, limit: RateLimit, now_s: float, *, want: int, spent: int) -> tuple[RateState, Drawn]:
    """Take up to `want` tokens out, after so many that were `spent` unasked; less than none are given back.

    What was spent is owed even if the bucket is empty; but no more than another burst, as if it had been larger.
    """
    interval_s = 1.0 / limit.requests_per_s
    debt_s = max(0.0, min(max(0.0, state.full_at_s - now_s) + spent * interval_s, 2.0 * limit.burst * interval_s))
    room = int(max(0.0, limit.burst * interval_s - debt_s + _ROUNDING_S) / interval_s)
    granted = min(want, room)
    debt_s += granted * interval_s
    return RateState(now_s + debt_s), Drawn(granted, debt_s)


def limit_fields(*, limit: float, remaining: float, reset_s: float) -> Fields:
    """The answer's fields (draft-ietf-httpapi-ratelimit-headers-06, 3)."""
    return (
        ("RateLimit-Limit", str(int(limit))),
        ("RateLimit-Remaining", str(int(remaining))),
        ("RateLimit-Reset", str(ceil(reset_s - _ROUNDING_S))),
    )


def whole_seconds(retry_after_s: float) -> int:
    """As `Retry-After` has it (RFC 9110, 10.2.3): rounded up, and never 0, which would ask for a retry at once."""
    return max(1, ceil(retry_after_s - _ROUNDING_S))
