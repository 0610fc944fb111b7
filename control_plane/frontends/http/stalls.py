"""Detects that a client makes no progress. Used by `frontends/http/timeouts`."""

from __future__ import annotations


class StallClock:
    """Clock of how long what a client does has been the same, by values that change with its progress."""

    def __init__(self) -> None:
        self._progress: tuple[object, ...] = ()
        self._since_s = 0.0

    def clear(self) -> None:
        """Note that the client is not waited for."""
        self._progress = ()

    def has_stalled(self, now_s: float, limit_s: float, *progress: object) -> bool:
        """Whether `progress` has been the same for `limit_s`."""
        if progress != self._progress:
            self._progress, self._since_s = progress, now_s
        return now_s - self._since_s >= limit_s
