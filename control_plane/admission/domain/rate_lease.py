"""Tokens of a tenant's bucket that one process holds, where several draw from one: asked by `admission/rate_leases`.

The bucket itself (`admission/domain/rate_limit`) is elsewhere, a round trip away. A process far from the limit should
not wait for that, and a process near it must not guess. So it draws some tokens ahead, by recent demand; it may spend
a few before it has drawn any while the bucket was at least half full, which it then tells at once; and what it was
refused it does not ask for again before there is more. All that processes may hold or spend so is a quarter of the
burst, and nothing of a small one: then each request asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from math import inf

_UNASKED_PART = 0.25
"""The part of the burst that all processes together may hold or spend ahead."""
_AHEAD_S = 0.1
"""How many seconds of recent demand a process draws ahead at a time."""
_ASK_EVERY_S = 0.02
"""While the bucket is empty: a flood on a high rate draws several tokens at a time instead of each for itself."""
_IDLE_S = 0.5
"""After which tokens that nobody wants are given back."""


class Taking(Enum):
    """The decision on a request: admitted, refused, or first to ask the bucket."""

    TAKEN = auto()
    REFUSED = auto()
    """The bucket is known to be empty."""
    ASK = auto()
    """Only the bucket knows."""


@dataclass(slots=True)
class Lease:
    """A process's share of one token bucket: the tokens it holds, and what it last heard of the bucket."""

    tokens: int = 0
    """Drawn and not used yet."""
    untold: int = 0
    """Used, but not drawn: to be told."""
    debt_s: float = 0.0
    """Until the bucket was full, when it was last asked."""
    asked_s: float = -inf
    empty_until_s: float = -inf
    """There is no use in asking before."""
    next_token_s: float = -inf
    """When the bucket had one, if nobody else took it."""
    used: int = 0
    """Requests that came since `counted_s`, admitted or not."""
    counted_s: float = -inf
    used_s: float = -inf
    """When the last came."""
    demand: float = 0.0
    """Requests per second, lately."""


def most_unasked(burst: float, processes: int) -> int:
    """Tokens that each of so many processes may hold, or owe."""
    return int(_UNASKED_PART * burst / max(1, processes))


def take(lease: Lease, rate: float, burst: float, processes: int, now_s: float) -> Taking:
    """A request comes: use a token for it, if that can be told here."""
    lease.used += 1
    lease.used_s = now_s
    if lease.tokens > 0:
        lease.tokens -= 1
        return Taking.TAKEN
    if now_s < lease.empty_until_s:
        return Taking.REFUSED
    if lease.untold < most_unasked(burst, processes) and debt_s(lease, rate=rate, now_s=now_s) <= 0.5 * burst / rate:
        lease.untold += 1
        return Taking.TAKEN
    return Taking.ASK


def wanted(lease: Lease, *, burst: float, processes: int, now_s: float) -> int:
    """Tokens to draw ahead, beside those that requests wait for; counts demand anew."""
    elapsed_s = now_s - lease.counted_s
    if elapsed_s >= _AHEAD_S:
        lease.demand, lease.used, lease.counted_s = (lease.used / elapsed_s if elapsed_s < inf else 0.0), 0, now_s
    return max(0, min(int(lease.demand * _AHEAD_S), most_unasked(burst, processes) - lease.tokens))


def is_low(lease: Lease, now_s: float) -> bool:
    """Whether to draw more before somebody has to wait for it."""
    return lease.untold > 0 or (lease.tokens < 0.5 * lease.demand * _AHEAD_S and now_s >= lease.empty_until_s)


def drawn(lease: Lease, *, granted: int, wanted: int, told: int, debt_s: float, rate: float, burst: float, now_s: float) -> None:
    """The bucket has been told of `told` and has granted so many of those `wanted`; it is full again in `debt_s`."""
    lease.untold -= told
    lease.tokens += granted
    lease.debt_s, lease.asked_s = debt_s, now_s
    if granted < wanted:
        lease.next_token_s = now_s + max(0.0, debt_s - (burst - 1.0) / rate)
        pause_s = min(_ASK_EVERY_S, 0.25 * burst / rate) if rate * _ASK_EVERY_S > 1.0 else 0.0
        lease.empty_until_s = max(lease.next_token_s, now_s + pause_s)


def debt_s(lease: Lease, *, rate: float, now_s: float) -> float:
    """Until the bucket is full, as far as this process can tell."""
    return max(0.0, max(0.0, lease.debt_s - (now_s - lease.asked_s)) + (lease.untold - lease.tokens) / rate)


def idle_tokens(lease: Lease, now_s: float) -> int:
    """Those that others may want more."""
    return lease.tokens if now_s - lease.used_s >= _IDLE_S else 0
