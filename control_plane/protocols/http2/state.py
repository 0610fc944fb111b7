"""State of one HTTP/2 connection that its reader and its writer share: open streams, windows of both
directions, output.

`protocols/http2/connection` reads the peer's frames, `protocols/http2/sending` writes ours. Streams are
created and ended here, by the rules of RFC 9113, 5.1 (stream states) and 5.2 (flow control).
"""

from __future__ import annotations

from control_plane.protocols.http2 import frames as h2
from control_plane.protocols.http2.frames import Code
from control_plane.protocols.http2.limits import Http2Limits
from control_plane.protocols.http2.nuisance import RESET, Nuisance
from control_plane.protocols.http2.stream import NULL_LISTENER, Stream, StreamListener


class ConnectionState:
    """The state of one HTTP/2 connection's streams and windows (RFC 9113, 5.1 and 5.2)."""

    __slots__ = (
        "age_ticks",
        "answered",
        "blocked",
        "initial_send_window",
        "is_server",
        "limits",
        "max_send_frame",
        "nuisance",
        "output",
        "receive_window",
        "send_window",
        "streams",
        "unreturned",
    )

    def __init__(self, limits: Http2Limits, *, is_server: bool) -> None:
        self.limits = limits
        self.is_server = is_server
        self.output: list[bytes | memoryview] = []
        self.streams: dict[int, Stream] = {}
        self.blocked: dict[int, Stream] = {}
        """Streams with data to send and an open window of their own, which wait for the connection's window
        only."""
        self.answered = 0
        self.age_ticks = 0
        """The connection's age in calls of `on_second`, that is about in seconds."""
        self.nuisance = Nuisance(is_counted=is_server)  # a client's end trusts its server, which is our Triton
        self.send_window = h2.DEFAULT_WINDOW_BYTES
        self.initial_send_window = h2.DEFAULT_WINDOW_BYTES
        self.max_send_frame = h2.DEFAULT_MAX_FRAME_BYTES
        self.receive_window = limits.connection_window_bytes
        self.unreturned = 0
        """Bytes consumed that have not been returned to the peer: too few yet for a WINDOW_UPDATE."""

    def new_stream(self, stream_id: int) -> Stream:
        window = self.limits.stream_window_bytes
        stream = Stream(stream_id, send_window=self.initial_send_window, receive_window=window, born=self.age_ticks)
        self.streams[stream_id] = stream
        return stream

    def remote_ends(self, stream: Stream) -> None:
        """The peer has ended its side of a stream."""
        stream.remote_is_closed = True
        if stream.local_is_closed:
            self._finish(stream)
        elif not self.is_server:
            self.reset(stream, Code.CANCEL)  # the server has answered before the call ended, and reads no more of it

    def local_ends(self, stream: Stream) -> None:
        """We have ended our side of a stream."""
        stream.local_is_closed = True
        if stream.remote_is_closed:
            self._finish(stream)
        elif self.is_server:
            self.reset(stream, Code.NO_ERROR)  # the client need not send the rest (RFC 9113, 8.1)

    def reset(self, stream: Stream, code: Code) -> None:
        """End a stream early with RST_STREAM; its listener is not called any more."""
        if stream.id in self.streams:
            self.output.append(h2.rst_stream(stream.id, code))
            self.forget(stream)

    def count_answer(self, *, has_data: bool) -> None:
        """Count a completed stream; it drains the nuisance bucket unless it was a refusal, which has no
        data."""
        self.answered += 1
        if has_data and self.nuisance.level:
            self.nuisance.drain_for_answer()

    def on_second(self) -> None:
        """Note that about a second has passed."""
        self.age_ticks += 1
        self.nuisance.on_second()

    def count_reset(self, stream: Stream) -> None:
        """Count a reset by the peer, if the stream was young.

        Raises Http2Error: too many of them (rapid reset attack).

        Resets of older streams are normal: a deadline that passed, or a caller that left with a thousand
        streams open.
        """
        if self.age_ticks - stream.born <= 1:
            self.nuisance.count(RESET)

    def forget(self, stream: Stream) -> StreamListener:
        """Drop a stream and return its listener.

        The stream loses its reference to the listener: the two form a cycle, which would keep the call's
        message in memory until the next garbage collection.
        """
        listener, stream.listener = stream.listener, NULL_LISTENER
        if self.streams.pop(stream.id, None) is not None:
            stream.local_is_closed = stream.remote_is_closed = True
            stream.pending.clear()
            self.blocked.pop(stream.id, None)
            if stream.held_bytes:
                self.return_to_connection(stream.held_bytes)
                stream.held_bytes = 0
        return listener

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
        if stream.unreturned * 2 >= self.limits.stream_window_bytes:
            self.output.append(h2.window_update(stream.id, stream.unreturned))
            stream.receive_window += stream.unreturned
            stream.unreturned = 0

    def return_to_connection(self, count: int) -> None:
        """Return `count` received bytes to the connection's window, batched into few WINDOW_UPDATEs."""
        self.unreturned += count
        # Half a window as a rule, but less when little is left of it: waiting streams may hold most of the
        # rest.
        has_enough = min(self.receive_window, self.limits.connection_window_bytes // 2)
        if self.unreturned and self.unreturned >= has_enough:
            self.output.append(h2.window_update(0, self.unreturned))
            self.receive_window += self.unreturned
            self.unreturned = 0

    def _finish(self, stream: Stream) -> None:
        self.count_answer(has_data=stream.has_sent_data)
        self.forget(stream)
