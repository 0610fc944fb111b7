"""Flow control of one HTTP/2 connection (RFC 9113, 5.2): how much either end may send.

The receiver debits and widens the windows, the sender spends them; which frames are read or written is not
known here, except WINDOW_UPDATE.
"""

from __future__ import annotations

from collections.abc import Iterable

from control_plane.protocols.http2 import frames as h2
from control_plane.protocols.http2.frames import Code, Http2Error
from control_plane.protocols.http2.limits import Http2Limits
from control_plane.protocols.http2.stream import MAX_WHOLE_BYTES, Stream


class FlowControl:
    """Flow-control windows of one HTTP/2 connection and its streams, in both directions."""

    __slots__ = (
        "_limits",
        "_output",
        "blocked",
        "initial_send_window",
        "max_send_frame",
        "receive_window",
        "send_window",
        "unreturned",
    )

    def __init__(self, limits: Http2Limits, output: list[bytes | memoryview]) -> None:
        self._limits = limits
        self._output = output
        self.send_window = h2.DEFAULT_WINDOW_BYTES
        self.initial_send_window = h2.DEFAULT_WINDOW_BYTES
        self.max_send_frame = h2.DEFAULT_MAX_FRAME_BYTES
        self.blocked: dict[int, Stream] = {}
        """Streams with data to send and an open window of their own, which wait for the connection's window
        only."""
        self.receive_window = limits.connection_window_bytes
        self.unreturned = 0
        """Bytes consumed that have not been returned to the peer: too few yet for a WINDOW_UPDATE."""

    # Receiving

    def received(self, stream: Stream | None, size: int) -> None:
        """Debit the windows for `size` bytes of a DATA frame; None: of a stream that is over.

        Raises Http2Error: a window is exceeded.
        """
        self.receive_window -= size
        if self.receive_window < 0:
            raise Http2Error("more data than the connection's window holds", Code.FLOW_CONTROL_ERROR)
        if stream is None:
            self.return_to_connection(size)  # nobody will consume it, and the connection's window would shrink for ever
            return
        stream.receive_window -= size
        if stream.receive_window < 0:
            raise Http2Error("more data than the stream's window holds", Code.FLOW_CONTROL_ERROR)
        stream.held_bytes += size

    def consumed(self, stream: Stream, count: int) -> None:
        """Return `count` bytes of a stream's received data to the peer's windows, as its listener has
        consumed them."""
        count = min(count, stream.held_bytes)  # what a dropped stream held has been returned already, by `forget`
        stream.held_bytes -= count
        self.return_to_connection(count)
        if stream.remote_is_closed:
            return
        stream.unreturned += count
        # Updates are batched: one for each half of a window is often enough to keep the peer sending.
        if stream.unreturned * 2 >= self._limits.stream_window_bytes:
            self._output.append(h2.window_update(stream.id, stream.unreturned))
            stream.receive_window += stream.unreturned
            stream.unreturned = 0

    def return_to_connection(self, count: int) -> None:
        """Return `count` received bytes to the connection's window, batched into few WINDOW_UPDATEs."""
        self.unreturned += count
        # Half a window as a rule, but less when little is left of it: waiting streams may hold most of the
        # rest.
        has_enough = min(self.receive_window, self._limits.connection_window_bytes // 2)
        if self.unreturned and self.unreturned >= has_enough:
            self._output.append(h2.window_update(0, self.unreturned))
            self.receive_window += self.unreturned
            self.unreturned = 0

    def forget(self, stream: Stream) -> None:
        """Return what a stream that has ended holds of the connection's window, and let it wait no longer."""
        self.blocked.pop(stream.id, None)
        if stream.held_bytes:
            self.return_to_connection(stream.held_bytes)
            stream.held_bytes = 0

    # Sending

    @property
    def has_window_for_whole(self) -> bool:
        """Whether a `WholeAnswer` of any size fits into a new stream's window and the connection's."""
        return min(self.send_window, self.initial_send_window, self.max_send_frame) >= MAX_WHOLE_BYTES

    @property
    def can_resume(self) -> bool:
        """Whether streams wait that could be resumed now."""
        return bool(self.blocked) and self.send_window > 0

    def room_for(self, stream: Stream) -> int:
        """The bytes that a stream may send now."""
        # A window may be negative after the peer has lowered INITIAL_WINDOW_SIZE (RFC 9113, 6.9.2).
        return max(0, min(stream.send_window, self.send_window))

    def set_initial_window(self, value: int, streams: Iterable[Stream]) -> None:
        """Apply the peer's INITIAL_WINDOW_SIZE, which shifts the windows of all open streams too.

        Raises Http2Error.
        """
        if value > h2.MAX_WINDOW_BYTES:
            raise Http2Error(f"INITIAL_WINDOW_SIZE {value} is out of range", Code.FLOW_CONTROL_ERROR)
        for stream in streams:
            self.widen_stream(stream, value - self.initial_send_window)
            if stream.pending and stream.send_window > 0:
                self.blocked[stream.id] = stream
        self.initial_send_window = value

    def widen(self, increment: int) -> None:
        """Widen the connection's window. Raises Http2Error."""
        self.send_window += increment
        if self.send_window > h2.MAX_WINDOW_BYTES:
            raise Http2Error("the connection's window overflows", Code.FLOW_CONTROL_ERROR)

    def widen_stream(self, stream: Stream, increment: int) -> None:
        """Widen a stream's window. Raises Http2Error."""
        stream.send_window += increment
        if stream.send_window > h2.MAX_WINDOW_BYTES:
            raise Http2Error("the stream's window overflows", Code.FLOW_CONTROL_ERROR)
