"""Backoff for failed authentication: refuses sources whose credentials keep being wrong, and bounds what
checking them costs.

Guessing a key of 256 random bits is hopeless at any speed; the bound is on what attempts cost and how much
they log. It is consulted only after an attempt has failed and before a signature is checked: a caller with a
valid key is never refused for what others from the same address do. Pure; called by `auth/authentication`.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

from control_plane.auth.domain.source import Source, source_of_address

_ROUNDING_S = 1e-7
"""Rounding error of sums of times."""


@dataclass(frozen=True, slots=True)
class AttemptLimits:
    """Limits on failed attempts of one source."""

    failures: int = 10
    """Failures within `within_s` before the source is refused. A program that was started with a wrong key
    fails a few times before somebody notices; a person types a wrong key less often.
    """

    within_s: float = 60.0

    first_refusal_s: float = 1.0
    """First refusal; each further one lasts twice as long."""

    max_refusal_s: float = 60.0
    """Longest refusal, and so the longest wait of a caller who has corrected the mistake."""

    max_sources: int = 10_000
    """Sources that are remembered, a few hundred bytes each; beyond that the one whose last failure is oldest
    is forgotten.
    """

    checks_per_s: float = 10.0
    """Rate of failed signature checks. Each takes 0.03 to 0.2 ms, so one source costs at most 2 ms of each
    second.
    """

    checks_burst: int = 50


@dataclass(slots=True)
class _Source:
    """Record of a source that has failed lately."""

    failed_s: deque[float]
    """Times of its last failures, `failures` of them at most."""
    refusals: int = 0
    refused_until_s: float = field(default=float("-inf"))
    checks_full_at_s: float = float("-inf")
    """When its budget of checks will be full again (generic cell rate algorithm, as
    `admission/domain/rate_limit`).
    """


class AuthBackoff:
    """Bounded table of the sources that failed lately, with exponential backoff for each."""

    def __init__(self, limits: AttemptLimits | None = None) -> None:
        self._limits = limits or AttemptLimits()
        self._sources: OrderedDict[Source, _Source] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sources)

    def refused_for_s(self, source: str, now_s: float) -> float:
        """Return for how many more seconds failing attempts of `source` are refused; 0 if they are not."""
        known = self._record_of(source)
        return 0.0 if known is None else max(0.0, known.refused_until_s - now_s)

    def checks_refused_for_s(self, source: str, now_s: float) -> float:
        """Return the seconds until another signature from `source` may be checked; 0 if one may be checked
        now.
        """
        known, limits = self._record_of(source), self._limits
        if known is None:
            return 0.0
        spent_s, burst_s = known.checks_full_at_s - now_s, (limits.checks_burst - 1) / limits.checks_per_s
        return spent_s - burst_s if spent_s > burst_s + _ROUNDING_S else 0.0

    def count_check(self, source: str, now_s: float) -> None:
        """Count a signature from `source` that was not valid."""
        known = self._remember(source_of_address(source))
        known.checks_full_at_s = max(known.checks_full_at_s, now_s) + 1.0 / self._limits.checks_per_s

    def count(self, source: str, now_s: float) -> float:
        """Count a failed attempt of `source`; return for how many seconds it is refused from now on."""
        known = self._remember(source_of_address(source))
        known.failed_s.append(now_s)
        known.refusals = known.refusals + 1 if self._goes_on(known, now_s) else 0
        if known.refusals == 0:
            return 0.0
        refused_s = self._refusal_s(known.refusals)
        known.refused_until_s = now_s + refused_s
        return refused_s

    def _goes_on(self, known: _Source, now_s: float) -> bool:
        """Whether the source is to be refused: it has failed too often lately, or fails again soon after a
        refusal.

        The second matters once refusals last a minute: attempts are then too rare to exceed the count within
        a minute.
        """
        limits = self._limits
        # The deque holds the times of the last `failures` attempts: if the oldest is recent, all of them are.
        is_full = len(known.failed_s) == limits.failures and now_s - known.failed_s[0] < limits.within_s
        return is_full or (known.refusals > 0 and now_s - known.refused_until_s < limits.within_s)

    def _refusal_s(self, refusals: int) -> float:
        doublings = min(refusals - 1, 64)  # bounded: from 1024 on the power would overflow
        return min(self._limits.first_refusal_s * 2.0**doublings, self._limits.max_refusal_s)

    def _record_of(self, source: str) -> _Source | None:
        return self._sources.get(source_of_address(source)) if self._sources else None

    def _remember(self, source: Source) -> _Source:
        known = self._sources.setdefault(source, _Source(deque(maxlen=self._limits.failures)))
        self._sources.move_to_end(source)
        if len(self._sources) > self._limits.max_sources:
            self._sources.popitem(last=False)
        return known
