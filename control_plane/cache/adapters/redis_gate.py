"""Which lookups `cache/adapters/redis_cache_lookups` sends and which it passes over; the log says so where that lasts."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from control_plane.cache.domain.lookup_worth import LookupWorth, UsualTime

_log = logging.getLogger(__name__)

_TOLD_AFTER_S = 10.0
"""Shorter is nothing that anybody need know of: a pause of the process, or a burst of a model that is quick."""


class LookupGate:
    """Gate before a shared cache, which lets lookups by while waiting for them is worth it."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._worth = LookupWorth()
        self._loop_is_late = UsualTime()
        self._passed_over: bytes | None = None
        self._closed_since_s: float | None = None
        self._is_told = False

    @property
    def answer_s(self) -> float:
        """What an answer usually takes, as this process experiences it; 0.0 where nothing is known."""
        return self._worth.answer_s

    def patience_s(self, keys: Sequence[bytes], computing_s: float, *, waited_s: float, now_s: float) -> float | None:
        """How long to wait for an answer about `keys`; None: they are passed over. Others wait since `waited_s`."""
        patience_s = self._worth.patience_s(computing_s)
        if patience_s is None or waited_s >= patience_s:
            self._pass_over(keys, computing_s, now_s)
            return None
        self._let_by()
        return patience_s

    def answered(self, took_s: float, *, hits: int, keys: int) -> None:
        """As `LookupWorth.answered`."""
        self._worth.answered(took_s, hits=hits, keys=keys)

    def loop_was_late(self, late_s: float) -> None:
        """A timer of this process came so late, which nobody else is to blame for."""
        self._loop_is_late.add(late_s)

    def begin_anew(self) -> None:
        """Another connection, maybe to another server."""
        self._worth.forget_times()

    def take_passed_over(self) -> bytes | None:
        """A key that was passed over lately, to try what asking for it would have brought."""
        key, self._passed_over = self._passed_over, None
        return key

    def _pass_over(self, keys: Sequence[bytes], computing_s: float, now_s: float) -> None:
        self._passed_over = keys[0]
        if self._closed_since_s is None:
            self._closed_since_s = now_s
        elif not self._is_told and now_s - self._closed_since_s >= _TOLD_AFTER_S:
            self._is_told = True
            self._tell_why(computing_s)

    def _let_by(self) -> None:
        self._closed_since_s = None
        if self._is_told:
            self._is_told = False
            _log.info("the shared cache at %s is asked again", self._place)

    def _tell_why(self, computing_s: float) -> None:
        _log.warning(
            "the shared cache at %s is not asked, since computing costs less: its answers take %.1f ms as this process experiences them "
            "(its own event loop is %.1f ms late), computing takes %.1f ms, and %.0f %% of what is looked up is there",
            self._place,
            self._worth.answer_s * 1e3,
            self._loop_is_late.usual_s * 1e3,
            computing_s * 1e3,
            self._worth.hit_ratio * 100,
        )
