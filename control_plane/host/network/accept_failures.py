"""Log of the connections that one listener could not accept, such as for lack of file descriptors.

Called by `frontends/common/connection_server` and `node/adapters/server`, which try again ten times a second: the log has a line
when that begins and one when it is over.
"""

from __future__ import annotations

import logging

_log = logging.getLogger(__name__)

_CALM_S = 10.0
"""Seconds without a failure after which it is over. At the limit of file descriptors accepts fail and succeed by turns."""


class AcceptFailures:
    """Log of one listener's accepts that have failed."""

    def __init__(self) -> None:
        self._count = 0
        self._first_s = self._last_s = float("-inf")

    def failed(self, error: OSError, now_s: float) -> None:
        """Note a failure at the loop's time `now_s`."""
        if not self._count or now_s - self._last_s >= _CALM_S:
            self._count, self._first_s = 0, now_s
            _log.warning("connections cannot be accepted, and wait: %s", error)
        self._count, self._last_s = self._count + 1, now_s

    def accepted(self, now_s: float) -> None:
        """Note a connection that was accepted at the loop's time `now_s`."""
        if self._count and now_s - self._last_s >= _CALM_S:
            _log.warning("connections are accepted again: %d accepts had failed in %.0f s", self._count, self._last_s - self._first_s)
            self._count = 0
