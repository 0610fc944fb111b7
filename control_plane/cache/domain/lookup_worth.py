"""Whether asking a shared cache is worth it, and how long to wait for it; asked by `cache/adapters/redis_gate`.

A lookup costs its caller what the cache takes to answer, and saves what computing takes if something is found.
Both times are those that this process experiences on its own event loop, which may be late: so like is compared
with like, on a slow or busy host too.
"""

from __future__ import annotations

from collections import deque
from statistics import median

_KEPT = 9

_ALWAYS_WORTH = 0.2
"""Part of computing that a lookup may always cost; beyond it, as large a part as lookups have lately found."""
_LEAST_PATIENCE_S = 0.002
"""Less than this an event loop needs for itself between a question and its answer, now and then."""
_USUAL_TIMES = 2.0
"""An answer that takes longer than so many usual ones is not likely to be on its way."""
_HITS_REMEMBERED = 32.0
"""Keys after which what lookups found before counts a third."""


class UsualTime:
    """Median of the last nine durations: what one may count on, whatever single ones took."""

    def __init__(self) -> None:
        self._last_s: deque[float] = deque(maxlen=_KEPT)
        self.usual_s = 0.0
        """0.0 as long as nothing was added."""

    def add(self, took_s: float) -> None:
        self._last_s.append(took_s)
        self.usual_s = median(self._last_s)


class LookupWorth:
    """Running estimate of what lookups in a shared cache take, and of how often they find something."""

    def __init__(self) -> None:
        self._answers = UsualTime()
        self.hit_ratio = 1.0
        """Until lookups show something else, a cache is taken to be full of what is asked for."""

    @property
    def answer_s(self) -> float:
        """What an answer usually takes; 0.0 where nothing is known."""
        return self._answers.usual_s

    def answered(self, took_s: float, *, hits: int = 0, keys: int = 0) -> None:
        """One answer has come, about `keys` that somebody wants; none of a trial with nobody's key."""
        self._answers.add(took_s)
        if keys:
            self.hit_ratio += keys / (keys + _HITS_REMEMBERED - 1) * (hits / keys - self.hit_ratio)

    def forget_times(self) -> None:
        """What answers took says nothing any more: they come from another server."""
        self._answers = UsualTime()

    def patience_s(self, computing_s: float) -> float | None:
        """How long a caller waits who would else compute for so long; None: it does not ask."""
        if self.answer_s > max(_ALWAYS_WORTH, self.hit_ratio) * computing_s:
            return None
        wanted_s = max(_ALWAYS_WORTH * computing_s, _USUAL_TIMES * self.answer_s)
        return max(min(wanted_s, computing_s), _LEAST_PATIENCE_S)
