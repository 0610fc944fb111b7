"""How much of what an HTTP/2 peer sends costs work and asks for nothing.

What one turn of the event loop does for a connection is bounded however little of it is nuisance; this ends the connections that are
hardly anything else.
"""

from __future__ import annotations

from control_plane.protocols.http2.frames import Code, Http2Error

FRAME = 16
"""The weight of a frame that asks for nothing: a ping, settings, a priority, what is unknown, what comes too late."""
LATE = 1
"""Of a frame for a stream that is over: of a large message that was refused, much is on its way."""
LARGE_BLOCK_BYTES = 1024
"""A header block that was not seen before costs as much as a frame for each of these that it has."""
RESET = 2 * FRAME
"""Of a stream that is reset soon after it began: it had its work begun, and then cancelled."""

_LIMIT = 500 * FRAME
"""250 resets; Netty allows 200 within 30 s, Envoy 500 in a connection's life."""
_PER_ANSWER = 10 * FRAME
_PER_CALM = 10 * FRAME


class Nuisance:
    """Leaky bucket of the frames by which a peer costs work and asks for nothing."""

    __slots__ = ("_is_counted", "level")

    def __init__(self, *, is_counted: bool) -> None:
        self._is_counted = is_counted
        self.level = 0

    def count(self, weight: int = FRAME) -> None:
        """One more of them. Raises Http2Error when it is one too many."""
        self.level += weight
        if self.level > _LIMIT and self._is_counted:
            raise Http2Error("too many frames that ask for nothing", Code.ENHANCE_YOUR_CALM)

    def forgive_frame(self) -> None:
        """A frame with data has gone, for which the peer may make room and measure its way."""
        self.level = max(0, self.level - FRAME)

    def forgive_answer(self) -> None:
        """A call has been answered with data."""
        self.level = max(0, self.level - _PER_ANSWER)

    def calm(self) -> None:
        """About a second has passed: what comes slowly, such as a keep-alive's pings, is no nuisance."""
        self.level = max(0, self.level - _PER_CALM)
