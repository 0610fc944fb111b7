"""Retry budget: a token bucket for work that is sent to servers in addition to what clients asked for.

Its tokens are compute units and requests. A tenth of the demand is put in, so that resends, hedges and mirrored requests
together add at most a tenth to the servers' load, however many requests fail. One request a second may exceed that, since a
tenth of little traffic is nothing. Unused tokens decay.

Whoever can do without leaves a reserve: a part of what the budget would hold if nobody had spent anything. So a route's mirror,
which copies requests all the time, stops where resends and hedges have spent much.

Requests that were lost by one server's death may be resent in debt: their number is bounded by what was in flight there, and
later demand pays the debt back. Pure; called by `inference/retries/retry_budget` and `fleet/routing/resending`.

Precedents: Finagle's RetryBudget, Envoy's `retry_budget`, and the 10 % of "Handling Overload" (Google SRE).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, log

SHARE = 0.1
"""Part of the compute units asked for that may be spent."""
SPARE_PER_S = 1.0
"""Requests a second that all processes together may send beyond that."""

_HALF_LIFE_S = 30.0
"""Half-life of tokens that nobody takes. At a steady load there are 4.3 s of the servers' work at most: enough to
send again what all servers had in flight, where answers take less."""
_MEAN_LIFE_S = _HALF_LIFE_S / log(2.0)
_ONE_LOSS_S = 10.0
"""Time within which only one server's death is paid for in debt: of more at once it is an outage, in which the
servers need rest."""


@dataclass(frozen=True, slots=True)
class RetryBucket:
    """State of the token bucket between two changes; what may be spent is below zero where it is owed."""

    units: float = 0.0
    """Compute units that may be spent."""
    requests: float = 0.0
    """Requests that may be sent: a model's cost is only learned from its first requests, and may change."""
    spare: float = 1.0
    """Requests that may be sent though there is nothing to be spent: at most one."""
    at_s: float = -inf
    full_units: float = 0.0
    """Compute units that there would be if nobody had spent any."""
    full_requests: float = 0.0

    def refilled(self, asked_units: float, asked_requests: int, now_s: float, *, processes: int) -> RetryBucket:
        """Return the bucket at `now_s`, after so much was asked for, evenly since the last refill.

        `processes` share the spare request of a second; each has its own demand, and so its share of the rest.
        """
        if self.at_s == -inf:
            units, requests = SHARE * asked_units, SHARE * asked_requests
            return RetryBucket(units, requests, self.spare, now_s, units, requests)
        past_s = max(0.0, now_s - self.at_s)
        kept = 0.5 ** (past_s / _HALF_LIFE_S)
        part = SHARE * ((1.0 - kept) * _MEAN_LIFE_S / past_s if past_s > 0.0 else 1.0)
        return RetryBucket(
            _decayed(self.units, kept) + part * asked_units,
            _decayed(self.requests, kept) + part * asked_requests,
            min(1.0, self.spare + SPARE_PER_S * past_s / processes),
            now_s,
            self.full_units * kept + part * asked_units,
            self.full_requests * kept + part * asked_requests,
        )

    def spent(self, units: float, *, may_owe: bool = False, reserve: float = 0.0) -> RetryBucket | None:
        """Return the bucket after a request of so many units is sent; None: it must not be, or would leave less than this part of
        a full bucket. Who leaves a reserve leaves the spare request, too."""
        has_enough = self.units - units >= reserve * self.full_units and self.requests - 1.0 >= reserve * self.full_requests
        if not has_enough and self.spare >= 1.0 and not reserve:
            return replace(self, spare=self.spare - 1.0)
        if has_enough or may_owe:
            return replace(self, units=self.units - units, requests=self.requests - 1.0)
        return None


def _decayed(balance: float, part: float) -> float:
    """What is left of a balance. A debt is not forgotten: it was work that the servers have done."""
    return balance * part if balance > 0.0 else balance


@dataclass(frozen=True, slots=True)
class ServerLoss:
    """The last loss of a server that is paid for in debt."""

    server: str = ""
    at_s: float = -inf

    def after(self, server: str, *, began_s: float, now_s: float) -> ServerLoss | None:
        """The loss that a request belongs to which began at `began_s` and was broken off by `server` now; None
        where it is none that may be paid for in debt: another server died just before, or this one had died when
        the request was sent there.
        """
        if server == self.server and began_s <= self.at_s:
            return self
        return ServerLoss(server, now_s) if now_s - self.at_s >= _ONE_LOSS_S else None
