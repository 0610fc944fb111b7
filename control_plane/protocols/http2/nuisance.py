"""Abuse limit of an HTTP/2 connection: counts frames that cost work and ask for nothing (pings, resets,
settings, ...).

It defends against floods such as rapid reset (CVE-2023-44487). The work per turn of the event loop is bounded
elsewhere for all frames; this limit ends connections that send hardly anything but nuisance.
"""

from __future__ import annotations

from control_plane.protocols.http2.frames import Code, Http2Error

FRAME = 16
"""Weight of a frame that asks for nothing: a ping, settings, a priority, a frame of an unknown type."""
LATE = 1
"""Weight of a frame for a stream that has ended; small, as much of a refused large message may still be on
its way."""
LARGE_BLOCK_BYTES = 1024
"""An unknown header block weighs as much as one frame for each so many bytes, since decoding it costs as
much."""
RESET = 2 * FRAME
"""Weight of a stream that the peer resets soon after opening it: its work was begun and then cancelled."""

_LIMIT = 500 * FRAME
"""The bucket's size: 250 resets. Netty allows 200 within 30 s, Envoy 500 in a connection's life."""
_PER_ANSWER = 10 * FRAME
_PER_SECOND = 10 * FRAME


class Nuisance:
    """Leaky bucket of nuisance frames: each fills it by its weight, useful answers and time drain it."""

    __slots__ = ("_is_counted", "age_ticks", "level")

    def __init__(self, *, is_counted: bool) -> None:
        self._is_counted = is_counted
        self.level = 0
        self.age_ticks = 0
        """The connection's age in calls of `on_second`, that is about in seconds."""

    def count(self, weight: int = FRAME) -> None:
        """Count a nuisance frame. Raises Http2Error (ENHANCE_YOUR_CALM) when the bucket overflows."""
        self.level += weight
        if self.level > _LIMIT and self._is_counted:
            raise Http2Error("too many frames that ask for nothing", Code.ENHANCE_YOUR_CALM)

    def count_reset(self, *, born: int) -> None:
        """Count a reset by the peer of a stream that was opened at the age `born`, if the stream was young.

        Raises as `count` does: too many of them are a rapid reset attack. Resets of older streams are normal:
        a deadline that passed, or a caller that left with a thousand streams open.
        """
        if self.age_ticks - born <= 1:
            self.count(RESET)

    def expect_late(self) -> None:
        """Drain for a frame that comes late since we ended its stream first."""
        self.level = max(0, self.level - LATE)

    def drain_for_frame(self) -> None:
        """Drain for a DATA frame that we sent: in return the peer may send a WINDOW_UPDATE, and a PING to
        measure latency."""
        self.level = max(0, self.level - FRAME)

    def drain_for_answer(self) -> None:
        """Drain for a call that was answered with data."""
        self.level = max(0, self.level - _PER_ANSWER)

    def on_second(self) -> None:
        """Drain for a second that has passed, so that slow keep-alive pings never fill the bucket."""
        self.age_ticks += 1
        self.level = max(0, self.level - _PER_SECOND)
