"""Events of the only Triton: that it went down, said nothing, and is back. A fleet has such events of its servers itself."""

from __future__ import annotations

import time
from collections.abc import Callable

from control_plane.admin.events.feed import EventFeed
from control_plane.triton.ports import Upstream


class OnlyTritonEvents:
    """Publisher of an only Triton's outages to the feed: a `triton/server_state.ServerObserver`."""

    def __init__(self, feed: EventFeed, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._feed = feed
        self._now_s = now_s
        self._has_been_up = False
        self._down_since_s: float | None = None

    def up(self, upstream: Upstream, server: str) -> None:
        self._has_been_up = True
        if self._down_since_s is not None:
            self._feed.publish("triton.up", {"seconds": self._now_s() - self._down_since_s})
            self._down_since_s = None

    def down(self, reason: str, server: str) -> None:
        """Tell of an outage once: a start that fails is a part of it."""
        if self._has_been_up and self._down_since_s is None:
            self._down_since_s = self._now_s()
            self._feed.publish("triton.down", {"reason": reason})

    def silence_changed(self, is_silent: bool, server: str) -> None:
        self._feed.publish("triton.silent" if is_silent else "triton.answering", {})

    def left(self, server: str) -> None:
        """Nothing to do: an only Triton does not leave."""
