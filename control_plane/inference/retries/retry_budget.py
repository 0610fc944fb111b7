"""Retry budget of one process for what it sends to servers in addition to clients' demand: resends, hedges and mirrored requests.

The dispatchers report the demand to it, and ask it before they send a request again. Each process may add a fixed fraction
of its own demand, so all processes together stay within that fraction of the total.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from enum import StrEnum
from math import inf
from typing import Protocol

from control_plane.inference.domain.retry_budget import RetryBucket, ServerLoss

_REFILL_EVERY_S = 1.0
"""Longest time over which demand is taken to be even."""


class RetryKind(StrEnum):
    """Why a request is sent another time; label `kind` of the metrics."""

    RESEND = "resend"
    """No answer came, or one by which another server may do better."""
    HEDGE = "hedge"
    """The answer is late, and another server may be sooner."""
    MIRROR = "mirror"
    """A copy for another model, whose answer nobody waits for."""


class CostedRequest(Protocol):
    """Part of an `AuthorizedRequest` that tells its cost."""

    @property
    def expected_units(self) -> float: ...


def units_of(running: CostedRequest | None) -> float:
    """Compute units that a request counts for in the retry budget."""
    return 1.0 if running is None else running.expected_units


class RetryBudget:
    """Retry budget of one process (`inference/domain/retry_budget`), with counts for the metrics page."""

    def __init__(self, *, now_s: Callable[[], float] = time.monotonic) -> None:
        """`now_s` is the event loop's time."""
        self.processes: Callable[[], int] = lambda: 1
        """Tells how many processes share the servers, this one included; set by `inference/inference`."""
        self.counts: Counter[tuple[RetryKind, bool]] = Counter()
        """Requests by kind and whether they were within the budget (else they were not sent)."""
        self._now_s = now_s
        self._asked_units, self._asked_requests = 0.0, 0
        self._loss = ServerLoss()
        self._bucket = RetryBucket()
        self._refill_s = -inf

    def asked(self, units: float, now_s: float | None = None) -> None:
        """Note that a client's request of so many compute units is sent for the first time. `now_s` is the loop's time, if
        the caller has just read it."""
        self._asked_units += units
        self._asked_requests += 1
        if (self._now_s() if now_s is None else now_s) >= self._refill_s:
            self._refill()

    def try_spend(self, units: float, kind: RetryKind = RetryKind.RESEND, *, may_owe: bool = False, reserve: float = 0.0) -> bool:
        """Spend so many compute units on sending a request another time; False where that must not be.

        `may_owe` is for what one server's death broke off; `reserve` is the part of the whole budget that is to be left for
        others. Whether there is a server with capacity to spare is for the caller to ask before.
        """
        self._refill()
        after = self._bucket.spent(units, may_owe=may_owe, reserve=reserve)
        self.counts[kind, after is not None] += 1
        if after is None:
            return False
        self._bucket = after
        return True

    @property
    def owed_requests(self) -> float:
        """Requests that were sent in debt and are not paid back yet."""
        return max(0.0, -self._bucket.requests)

    def try_resend_lost(self, units: float, *, server: str, began_s: float) -> bool:
        """Spend so many compute units on sending a request again that was sent to `server` at `began_s`, where a process
        has died since. What the first death of several broke off is sent in debt, if need be."""
        loss = self._loss.after(server, began_s=began_s, now_s=self._now_s())
        self._loss = loss or self._loss
        return self.try_spend(units, may_owe=loss is not None)

    @property
    def totals(self) -> Mapping[tuple[RetryKind, bool], int]:
        """Requests by kind and whether the budget allowed them, zeros included."""
        return {(kind, is_sent): self.counts[kind, is_sent] for kind in RetryKind for is_sent in (True, False)}

    def _refill(self) -> None:
        now_s = self._now_s()
        self._bucket = self._bucket.refilled(self._asked_units, self._asked_requests, now_s, processes=self.processes())
        self._asked_units, self._asked_requests, self._refill_s = 0.0, 0, now_s + _REFILL_EVERY_S
