"""Slows sources whose keys and tokens keep being wrong, and bounds what checking them costs; asked by `auth/authentication`.

Guessing a key of 256 random bits is hopeless at any speed: this bounds what the attempts cost, and what they fill logs with. It
is asked about attempts that have failed, and before a signature is checked: whoever shows a valid key pays for nobody else.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

from control_plane.auth.domain.source import Source, source_of_address

_ROUNDING_S = 1e-7
"""What sums of times may lose."""


@dataclass(frozen=True, slots=True)
class AttemptLimits:
    """Bounds, in attempts and seconds."""

    failures: int = 10
    """A program started with a wrong key fails a few times; a person types it less often."""

    within_s: float = 60.0

    first_refusal_s: float = 1.0

    max_refusal_s: float = 60.0
    """Somebody who has put the mistake right need not wait longer."""

    max_sources: int = 10_000
    """Of a few hundred bytes each; beyond, the one whose last failure is oldest is forgotten."""

    checks_per_s: float = 10.0
    """Of signatures that do not hold. Each costs 0.03 to 0.2 ms, so one source takes 2 ms of a second at most."""

    checks_burst: int = 50


@dataclass(slots=True)
class _Source:
    failed_s: deque[float]
    refusals: int = 0
    refused_until_s: float = field(default=float("-inf"))
    checks_full_at_s: float = float("-inf")
    """When all of its checks will be there again (the generic cell rate algorithm)."""


class FailedAttempts:
    """The sources that have failed lately."""

    def __init__(self, limits: AttemptLimits | None = None) -> None:
        self._limits = limits or AttemptLimits()
        self._sources: OrderedDict[Source, _Source] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sources)

    def refused_for_s(self, source: str, now_s: float) -> float:
        """Seconds for which `source` is told to stay away when it fails; 0 when it is not."""
        known = self._known(source)
        return 0.0 if known is None else max(0.0, known.refused_until_s - now_s)

    def checks_refused_for_s(self, source: str, now_s: float) -> float:
        """Seconds until one more signature from `source` may be checked."""
        known, limits = self._known(source), self._limits
        if known is None:
            return 0.0
        spent_s, burst_s = known.checks_full_at_s - now_s, (limits.checks_burst - 1) / limits.checks_per_s
        return spent_s - burst_s if spent_s > burst_s + _ROUNDING_S else 0.0

    def count_check(self, source: str, now_s: float) -> None:
        """One more signature of `source` did not hold."""
        known = self._remember(source_of_address(source))
        known.checks_full_at_s = max(known.checks_full_at_s, now_s) + 1.0 / self._limits.checks_per_s

    def count(self, source: str, now_s: float) -> float:
        """One more failure of `source`: for how many seconds it is refused from now on."""
        known = self._remember(source_of_address(source))
        known.failed_s.append(now_s)
        known.refusals = known.refusals + 1 if self._goes_on(known, now_s) else 0
        if known.refusals == 0:
            return 0.0
        refused_s = self._refusal_s(known.refusals)
        known.refused_until_s = now_s + refused_s
        return refused_s

    def _goes_on(self, known: _Source, now_s: float) -> bool:
        """Whether it has failed too often just now, or fails again soon after it was refused: the long ones are a minute apart."""
        limits = self._limits
        is_full = len(known.failed_s) == limits.failures and now_s - known.failed_s[0] < limits.within_s
        return is_full or (known.refusals > 0 and now_s - known.refused_until_s < limits.within_s)

    def _refusal_s(self, refusals: int) -> float:
        doublings = min(refusals - 1, 64)
        return min(self._limits.first_refusal_s * 2.0**doublings, self._limits.max_refusal_s)

    def _known(self, source: str) -> _Source | None:
        return self._sources.get(source_of_address(source)) if self._sources else None

    def _remember(self, source: Source) -> _Source:
        known = self._sources.setdefault(source, _Source(deque(maxlen=self._limits.failures)))
        self._sources.move_to_end(source)
        if len(self._sources) > self._limits.max_sources:
            self._sources.popitem(last=False)
        return known
