"""Token lease: the tokens of a tenant's shared bucket that one process holds in advance. Pure; called by
`admission/rate_leases`.

The bucket itself (`admission/domain/rate_limit`) is in Redis, a round trip away. A process far from the limit
should not wait for that, and a process near it must not guess. So a process draws some tokens ahead, by
recent demand. It may spend a few that it has not drawn, as long as the bucket was at least half full, and
reports these at once. After a refusal it does not ask again before the bucket can have another token. All
processes together may hold or spend ahead a quarter of the burst; of a small burst that is less than one
token, and then each request asks the bucket.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from math import inf

_AHEAD_PART = 0.25
"""Part of the burst that all processes together may hold or spend ahead; it bounds how unfairly the tokens
may be spread.
"""
_AHEAD_S = 0.1
"""Seconds of recent demand that a process draws ahead at a time."""
_ASK_EVERY_S = 0.02
"""Pause between draws from an empty bucket: under a flood at a high rate one draw gets several tokens,
instead of one each.
"""
_IDLE_S = 0.5
"""Seconds without a request after which a process gives its tokens back."""


class LeaseDecision(Enum):
    """Decision on a request by the lease alone: admitted, refused, or left to the bucket."""

    ADMITTED = auto()
    REFUSED = auto()
    """The bucket is known to be empty."""
    ASK = auto()
    """Only the bucket can decide."""


@dataclass(slots=True)
class TokenLease:
    """Token lease of one process and tenant: the tokens it holds, and what it last heard of the bucket."""

    tokens: int = 0
    """Tokens drawn and not used yet."""
    unreported: int = 0
    """Tokens used without being drawn, which the bucket must still be told of."""
    debt_s: float = 0.0
    """Seconds until the bucket would be full, as of `asked_s`."""
    asked_s: float = -inf
    """When the bucket last answered."""
    empty_until_s: float = -inf
    """Until then the bucket is not asked, since it cannot have a token."""
    next_token_s: float = -inf
    """When the bucket has its next token, if no other process draws it."""
    used: int = 0
    """Requests that came since `counted_s`, admitted or not."""
    counted_s: float = -inf
    used_s: float = -inf
    """When the last request came."""
    demand: float = 0.0
    """Recent requests per second."""


def max_ahead(burst: float, processes: int) -> int:
    """Return the most tokens that each process may hold, and the most that it may owe."""
    return int(_AHEAD_PART * burst / max(1, processes))


def decide(lease: TokenLease, rate: float, burst: float, processes: int, now_s: float) -> LeaseDecision:
    """Decide on a request that comes now, using up a token if it is admitted here; `rate` is in requests per
    second.
    """
    lease.used += 1
    lease.used_s = now_s
    if lease.tokens > 0:
        lease.tokens -= 1
        return LeaseDecision.ADMITTED
    if now_s < lease.empty_until_s:
        return LeaseDecision.REFUSED
    # Spending ahead is safe only while the bucket has plenty: at least half of the burst, as far as this
    # process knows.
    if lease.unreported < max_ahead(burst, processes) and debt_s(lease, rate=rate, now_s=now_s) <= 0.5 * burst / rate:
        lease.unreported += 1
        return LeaseDecision.ADMITTED
    return LeaseDecision.ASK


def wanted(lease: TokenLease, *, burst: float, processes: int, now_s: float) -> int:
    """Return how many tokens to draw ahead, on top of those that requests wait for, and update the recent
    demand.
    """
    elapsed_s = now_s - lease.counted_s
    if elapsed_s >= _AHEAD_S:
        lease.demand, lease.used, lease.counted_s = (lease.used / elapsed_s if elapsed_s < inf else 0.0), 0, now_s
    return max(0, min(int(lease.demand * _AHEAD_S), max_ahead(burst, processes) - lease.tokens))


def is_low(lease: TokenLease, now_s: float) -> bool:
    """Whether to draw more tokens now, before a request has to wait for one."""
    return lease.unreported > 0 or (lease.tokens < 0.5 * lease.demand * _AHEAD_S and now_s >= lease.empty_until_s)


def drawn(lease: TokenLease, *, granted: int, wanted: int, told: int, debt_s: float, rate: float, burst: float, now_s: float) -> None:
    """Record a draw: the bucket was told of `told` tokens, granted some of those `wanted`, and will be full
    in `debt_s`.
    """
    lease.unreported -= told
    lease.tokens += granted
    lease.debt_s, lease.asked_s = debt_s, now_s
    if granted < wanted:
        lease.next_token_s = now_s + max(0.0, debt_s - (burst - 1.0) / rate)
        pause_s = min(_ASK_EVERY_S, 0.25 * burst / rate) if rate * _ASK_EVERY_S > 1.0 else 0.0
        lease.empty_until_s = max(lease.next_token_s, now_s + pause_s)


def debt_s(lease: TokenLease, *, rate: float, now_s: float) -> float:
    """Return the seconds until the bucket is full, as far as this process can tell: tokens it holds count as
    not used.
    """
    return max(0.0, max(0.0, lease.debt_s - (now_s - lease.asked_s)) + (lease.unreported - lease.tokens) / rate)


def idle_tokens(lease: TokenLease, now_s: float) -> int:
    """Return how many tokens to give back, since this process has had no requests for a while and others may
    need them.
    """
    return lease.tokens if now_s - lease.used_s >= _IDLE_S else 0
