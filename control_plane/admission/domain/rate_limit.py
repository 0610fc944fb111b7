"""Token bucket: how many requests a tenant may send per second, and how many at once.

Implemented as the generic cell rate algorithm (GCRA; ITU-T I.371, annex A), whose only state is the time at
which the bucket will be full again. Since that is a time and not a number of tokens it stays right when the
limit changes.

Pure; called by `admission/rate_leases` and, as a script in Redis, by `admission/adapters/redis_buckets`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf

Fields = tuple[tuple[str, str], ...]

# Error that adding and subtracting times may build up, over a long run at exactly the rate on a machine that
# has been up for weeks.
_ROUNDING_S = 1e-7

# Retry-After for a tenant whose limit is 0.
_NEVER_S = 3600.0


@dataclass(frozen=True, slots=True)
class RateLimit:
    """Rate and size of a token bucket."""

    requests_per_s: float
    burst: float
    """Requests that a full bucket admits at once, at least 1."""


@dataclass(slots=True)
class RateState:
    """State of a token bucket between two requests.

    It and `RateDecision` are immutable values; they are not declared frozen, since each request makes one of
    each.
    """

    full_at_s: float = -inf
    """When the bucket will be full again; GCRA's theoretical arrival time."""


@dataclass(slots=True)
class RateDecision:
    """Decision on a request, with the numbers for the response's RateLimit fields."""

    is_admitted: bool
    state: RateState
    remaining: int
    """Further requests that would be admitted now."""
    reset_s: float
    """Seconds until the bucket is full."""
    retry_after_s: float
    """Seconds until a request would be admitted; 0 if this one is."""


def part_of_limit(requests_per_s: float, burst: int | None, *, share: float) -> RateLimit:
    """Return the limit of a process that enforces `share` of its tenant's; without a `burst` it is one
    second's worth.
    """
    # A bucket that holds less than one token would never admit anything.
    whole_burst = requests_per_s if burst is None else burst
    return RateLimit(requests_per_s * share, max(1.0, whole_burst * share))


def admit(state: RateState, limit: RateLimit, now_s: float) -> RateDecision:
    """Decide on a request that comes at `now_s`; the decision's state includes the request if it is
    admitted.
    """
    if limit.requests_per_s <= 0:
        return RateDecision(False, state, 0, _NEVER_S, _NEVER_S)
    interval_s = 1.0 / limit.requests_per_s
    refill_s = max(0.0, state.full_at_s - now_s)
    room_s = limit.burst * interval_s - refill_s - interval_s
    after = state_after(state, limit, now_s)
    if after is None:
        return RateDecision(False, state, 0, refill_s, -room_s)
    remaining = int(max(0.0, room_s + _ROUNDING_S) / interval_s)
    return RateDecision(True, after, remaining, refill_s + interval_s, 0.0)


def state_after(state: RateState, limit: RateLimit, now_s: float) -> RateState | None:
    """Return the state that includes a request that comes at `now_s`; None where the limit refuses it. It is `admit`
    without the numbers for a refusal, which hardly any request needs.
    """
    if limit.requests_per_s <= 0:
        return None
    interval_s = 1.0 / limit.requests_per_s
    refill_s = state.full_at_s - now_s
    if refill_s < 0.0:
        refill_s = 0.0
    return None if limit.burst * interval_s - refill_s - interval_s < -_ROUNDING_S else RateState(now_s + refill_s + interval_s)


@dataclass(frozen=True, slots=True)
class Draw:
    """Result of drawing tokens from a bucket that several processes share."""

    granted: int
    debt_s: float
    """Seconds until the bucket is full."""


def draw(state: RateState, limit: RateLimit, now_s: float, *, want: int, spent: int) -> tuple[RateState, Draw]:
    """Draw up to `want` tokens, after deducting those `spent` in advance; a negative `spent` gives tokens
    back.

    Tokens spent in advance are owed even if the bucket is empty; the debt is at most one more burst, as if
    the bucket had been twice as large.
    """
    interval_s = 1.0 / limit.requests_per_s
    debt_s = max(0.0, min(max(0.0, state.full_at_s - now_s) + spent * interval_s, 2.0 * limit.burst * interval_s))
    room = int(max(0.0, limit.burst * interval_s - debt_s + _ROUNDING_S) / interval_s)
    granted = min(want, room)
    debt_s += granted * interval_s
    return RateState(now_s + debt_s), Draw(granted, debt_s)


def limit_fields(*, limit: float, remaining: float, reset_s: float) -> Fields:
    """Return the response's header fields for a limit (draft-ietf-httpapi-ratelimit-headers-06,
    section 3).
    """
    return (
        ("RateLimit-Limit", str(int(limit))),
        ("RateLimit-Remaining", str(int(remaining))),
        ("RateLimit-Reset", str(ceil(reset_s - _ROUNDING_S))),
    )
