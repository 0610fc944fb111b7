"""How many requests another region takes from this one at a time, and for how long it is left alone once it refused.

A congestion window as TCP's (RFC 5681): the other region does not say how much idle room it has, and that changes with its own
callers. What it answers widens the window, fast until the first refusal and then slowly; a refusal halves it and shuts it for a
moment, which doubles while nothing is answered between: two regions that are both full ask each other once in two seconds.
Pure; called by `regions/domain/standing`.
"""

from __future__ import annotations

from dataclasses import dataclass

_FIRST, _MOST = 4.0, 256.0
_WIDENS = 0.25
"""By so much a whole window of answers widens it after the first refusal."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0


@dataclass(slots=True)
class Window:
    """Congestion window of one region."""

    size: float = _FIRST
    full_until_s: float = float("-inf")
    """When it may be asked again after a refusal."""
    _pause_s: float = FIRST_PAUSE_S
    _has_refused: bool = False

    def has_room(self, in_flight: int, now_s: float) -> bool:
        """Whether one more request may be sent beside `in_flight` others."""
        return now_s >= self.full_until_s and in_flight < int(self.size)

    def answered(self) -> None:
        """Note that a request was answered there."""
        self.size = min(_MOST, self.size + (_WIDENS / self.size if self._has_refused else 1.0))
        self._pause_s = FIRST_PAUSE_S

    def refused(self, now_s: float) -> None:
        """Note that a request was refused for want of room. Several refused at once count as one."""
        self._has_refused = True
        if now_s < self.full_until_s:
            return
        self.size = max(1.0, self.size / 2)
        self.full_until_s = now_s + self._pause_s
        self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s)
