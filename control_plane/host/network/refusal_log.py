"""Log of the connections that one listener refuses: some lines a minute, however many knock, and how many there were besides.

Called by `node/adapters/server`.
"""

from __future__ import annotations

import logging

_log = logging.getLogger(__name__)

_WINDOW_S = 60.0
_MOST_LINES = 10


class RefusalLog:
    """Log of one listener's refusals, bounded: strangers decide how many there are."""

    def __init__(self) -> None:
        self._count = 0
        self._since_s = float("-inf")

    def refused(self, peer: str, why: str, now_s: float) -> None:
        """Note that the connection from `peer` is refused, at the loop's time `now_s`."""
        if now_s - self._since_s >= _WINDOW_S:
            if (unsaid := self._count - _MOST_LINES) > 0:
                _log.warning("%d more connections were refused in the minute after the first of these", unsaid)
            self._count, self._since_s = 0, now_s
        self._count += 1
        if self._count <= _MOST_LINES:
            _log.warning("a connection from %s is refused: %s", peer, why)
