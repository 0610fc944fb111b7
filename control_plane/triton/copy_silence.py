"""Decides whether a loaded copy of a model hangs, from how requests to it end in one process. Pure.

A request that runs out of time says little: its model may be slow, or others may be before it. So a copy hangs
only if several have run out of time in a row, nothing was answered for much longer than an answer has ever
taken, and nobody waits any longer for what it works on: requests sent before those that gave up may be long ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

_TIMES = 2
"""Requests that must have run out of time since the last answer."""
_WAITED_S = 0.05
"""Shortest wait that says anything: who cancels at once, time and again, has nothing computed."""
_AT_LEAST_S, _FACTOR = 1.5, 3.0
"""Shortest silence, and the silence as a multiple of the longest time that an answer has taken."""
UNSEEN_S = 60.0
"""Silence of a copy that has answered nothing yet, since first requests may compile or fetch something. Also
the longest time for which a request that is still waited for says that the copy computes it."""
HUNG = "hung and was ended"
"""How the stub of a copy that hangs is said to have died (`triton/embedded/watchdogs/stub_watch`)."""
_LAPSES_S = 30.0
"""Pause between two requests that run out of time after which they have nothing to do with each other."""


@dataclass(slots=True)
class CopySilence:
    """Silence of one model's copy on one server."""

    _longest_s: float = field(default=0.0, init=False)
    _has_answered: bool = field(default=False, init=False)
    _answered_s: float = field(default=-inf, init=False)
    _given_up: int = field(default=0, init=False)
    """Requests that have run out of time since the last answer."""
    _since_s: float = field(default=inf, init=False)
    """When the first of them was sent, or the last answer came, whichever was later."""
    _first_sent_s: float = field(default=inf, init=False)
    """When the first of them was sent."""
    _is_overdue: bool = field(default=False, init=False)
    """Whether one of them was waited for as long as a silence must last."""
    _gave_up_s: float = field(default=-inf, init=False)

    def answered(self, sent_s: float, now_s: float) -> None:
        """Note any answer, good or bad. An answer to a request that was sent before all that were given up does not show that the
        copy has finished those: it only begins the silence anew."""
        self._has_answered, self._answered_s = True, now_s
        if self._given_up and sent_s < self._first_sent_s:
            self._since_s, self._is_overdue = now_s, False
        else:
            self._given_up = 0
        if now_s - sent_s > self._longest_s:
            self._longest_s = now_s - sent_s

    def goes_on(self, now_s: float) -> None:
        """Note that the copy goes on with a response that it streams: the silence begins anew."""
        self._answered_s = self._since_s = now_s
        self._is_overdue = False

    def gave_up(self, sent_s: float, now_s: float, *, oldest_s: float) -> float | None:
        """Note a request that was not answered in time, and return, once, since when the copy hangs; None if it
        does not. `oldest_s` is when the first request was sent that is still waited for; infinity if there is
        none."""
        if now_s - sent_s < _WAITED_S:
            return None
        if not self._given_up or now_s - self._gave_up_s > _LAPSES_S:
            self._given_up, self._since_s = 0, max(sent_s, self._answered_s)
            self._first_sent_s, self._is_overdue = sent_s, False
        self._first_sent_s = min(self._first_sent_s, sent_s)
        self._is_overdue = self._is_overdue or now_s - max(sent_s, self._answered_s) >= self._limit_s
        self._given_up, self._gave_up_s = self._given_up + 1, now_s
        return self._since_s_if_hung(now_s, oldest_s, times=_TIMES)

    def overdue(self, now_s: float, *, oldest_s: float) -> float | None:
        """Return, once, since when the copy hangs, as `gave_up`, for the first request that is still waited for. It
        counts as one that has run out of time once it has waited as long as a silence must last, if one has been
        given up after such a time, too: who leaves sooner may leave a copy that has only begun with a long one."""
        if not self._is_overdue or not self._given_up or now_s - oldest_s < self._limit_s:
            return None
        return self._since_s_if_hung(now_s, oldest_s, times=_TIMES - 1)

    @property
    def _limit_s(self) -> float:
        return max(_AT_LEAST_S, _FACTOR * self._longest_s) if self._has_answered else UNSEEN_S

    def _since_s_if_hung(self, now_s: float, oldest_s: float, *, times: int) -> float | None:
        is_silent = now_s - self._since_s >= self._limit_s
        if self._given_up < times or not is_silent or is_worked_on(oldest_s, self._first_sent_s, now_s):
            return None
        self._given_up = 0
        return self._first_sent_s


def is_worked_on(oldest_s: float, since_s: float, now_s: float) -> bool:
    """Whether a copy that is silent since then may be computing a long request, which was sent at `oldest_s`
    and is still waited for."""
    return oldest_s <= since_s and now_s - oldest_s < UNSEEN_S
