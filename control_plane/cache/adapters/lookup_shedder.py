"""Load shedding of `cache/adapters/redis_cache_lookups`: decides which lookups are sent, and logs when shedding lasts."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from control_plane.cache.domain.lookup_worth import LookupPolicy, RunningMedian

_log = logging.getLogger(__name__)

_TOLD_AFTER_S = 10.0
"""Shedding for a shorter time is not logged: a pause of the process, or a burst of requests for a quick
model, causes it.
"""


class LookupShedder:
    """Load shedding in front of a shared cache: lookups pass while their latency is worth what a hit
    saves.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self._worth = LookupPolicy()
        self._loop_is_late = RunningMedian()
        self._shed_key: bytes | None = None
        self._shedding_since_s: float | None = None
        self._has_told_why = False

    @property
    def answer_s(self) -> float:
        """Median latency of a lookup in seconds, as this process experiences it; 0.0 while nothing was
        measured.
        """
        return self._worth.answer_s

    def patience_s(self, keys: Sequence[bytes], computing_s: float, *, waited_s: float, now_s: float) -> float | None:
        """Return how long to wait for an answer about `keys`, or None if they are shed.

        `waited_s` is how long the exchange under way has taken already; a new lookup would have to wait
        behind it.
        """
        patience_s = self._worth.patience_s(computing_s)
        if patience_s is None or waited_s >= patience_s:
            self._shed(keys, computing_s, now_s)
            return None
        self._admit()
        return patience_s

    def answered(self, took_s: float, *, hits: int, keys: int) -> None:
        """Record an answer's latency and hits, as `LookupPolicy.answered` says."""
        self._worth.answered(took_s, hits=hits, keys=keys)

    def loop_was_late(self, late_s: float) -> None:
        """Record that a timer of this process's event loop was late by `late_s`; the log names it beside
        Redis's latency.
        """
        self._loop_is_late.add(late_s)

    def forget_latencies(self) -> None:
        """Forget latencies after a reconnect, which may have led to another server."""
        self._worth.forget_latencies()

    def pop_shed_key(self) -> bytes | None:
        """Return, once, a key that was shed lately, so that a probe can find out whether it would
        have hit.
        """
        key, self._shed_key = self._shed_key, None
        return key

    def _shed(self, keys: Sequence[bytes], computing_s: float, now_s: float) -> None:
        self._shed_key = keys[0]
        if self._shedding_since_s is None:
            self._shedding_since_s = now_s
        elif not self._has_told_why and now_s - self._shedding_since_s >= _TOLD_AFTER_S:
            self._has_told_why = True
            self._tell_why(computing_s)

    def _admit(self) -> None:
        self._shedding_since_s = None
        if self._has_told_why:
            self._has_told_why = False
            _log.info("the shared cache at %s is asked again", self._place)

    def _tell_why(self, computing_s: float) -> None:
        """Log why lookups are shed: the latency, the delays of our own event loop, the computing time and the
        hit ratio.
        """
        _log.warning(
            "the shared cache at %s is not asked, since computing costs less: its answers take %.1f ms as this process experiences them "
            "(its own event loop is %.1f ms late), computing takes %.1f ms, and %.0f %% of what is looked up is there",
            self._place,
            self._worth.answer_s * 1e3,
            self._loop_is_late.median_s * 1e3,
            computing_s * 1e3,
            self._worth.hit_ratio * 100,
        )
