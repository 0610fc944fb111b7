"""What reading and writing one HTTP/2 connection share: its open streams, the windows of both directions, and what is to be written.

`protocols/http2/connection` reads what the peer sends, `protocols/http2/sending` writes what goes to it; neither
knows the other. A stream ends here.
"""

from __future__ import annotations

from control_plane.protocols.http2 import frames as h2
from control_plane.protocols.http2.frames import Code
from control_plane.protocols.http2.limits import Http2Limits
from control_plane.protocols.http2.nuisance import RESET, Nuisance
from control_plane.protocols.http2.stream import NOBODY, Stream, StreamListener


class ConnectionState:
    """The state of one HTTP/2 connection's streams and windows (RFC 9113, 5.1 and 5.2)."""

    __slots__ = (
        "answered",
        "blocked",
        "calms",
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
        """Those that have more to send and room for it, but for the connection's."""
        self.answered = 0
        self.calms = 0
        """About how many seconds it has lasted."""
        self.nuisance = Nuisance(is_counted=is_server)  # our servers are trusted
        self.send_window = h2.DEFAULT_WINDOW_BYTES
        self.initial_send_window = h2.DEFAULT_WINDOW_BYTES
        self.max_send_frame = h2.DEFAULT_MAX_FRAME_BYTES
        self.receive_window = limits.connection_window_bytes
        self.unreturned = 0
        """Consumed, and not yet worth a WINDOW_UPDATE."""

    def new_stream(self, stream_id: int) -> Stream:
        window = self.limits.stream_window_bytes
        stream = Stream(stream_id, send_window=self.initial_send_window, receive_window=window, born=self.calms)
        self.streams[stream_id] = stream
        return stream

    def remote_ends(self, stream: Stream) -> None:
        """The peer sends no more on it."""
        stream.remote_is_closed = True
        if stream.local_is_closed:
            self._finish(stream)
        elif not self.is_server:
            self.reset(stream, Code.CANCEL)  # it has been answered: nobody reads the rest of the call

    def local_ends(self, stream: Stream) -> None:
        """We send no more on it."""
        stream.local_is_closed = True
        if stream.remote_is_closed:
            self._finish(stream)
        elif self.is_server:
            self.reset(stream, Code.NO_ERROR)  # the client need not send the rest (RFC 9113, 8.1)

    def reset(self, stream: Stream, code: Code) -> None:
        """End a stream early; nothing more is told of it."""
        if stream.id in self.streams:
            self.output.append(h2.rst_stream(stream.id, code))
            self.forget(stream)

    def count_answer(self, *, has_data: bool) -> None:
        """A stream has ended well; a refusal, which has no data, makes up for nothing."""
        self.answered += 1
        if has_data and self.nuisance.level:
            self.nuisance.forgive_answer()

    def calm(self) -> None:
        """About a second has passed."""
        self.calms += 1
        self.nuisance.calm()

    def count_reset(self, stream: Stream) -> None:
        """The peer has given a stream up. Raises Http2Error: it does so too often, soon after they began.

        One that took a second and more is a deadline that has passed or a caller that has left, and may be one of a thousand.
        """
        if self.calms - stream.born <= 1:
            self.nuisance.count(RESET)

    def forget(self, stream: Stream) -> StreamListener:
        """Drop a stream and return its listener, which it no longer holds: in a cycle they would keep the message until a collection."""
        listener, stream.listener = stream.listener, NOBODY
        if self.streams.pop(stream.id, None) is not None:
            stream.local_is_closed = stream.remote_is_closed = True
            stream.pending.clear()
            self.blocked.pop(stream.id, None)
            if stream.held_bytes:
                self.return_to_connection(stream.held_bytes)
                stream.held_bytes = 0
        return listener

    def consumed(self, stream: Stream, count: int) -> None:
        """`count` bytes of what came on the stream need no room any more."""
        count = min(count, stream.held_bytes)  # what a finished stream held has been returned already
        stream.held_bytes -= count
        self.return_to_connection(count)
        if stream.remote_is_closed:
            return
        stream.unreturned += count
        if stream.unreturned * 2 >= self.limits.stream_window_bytes:
            self.output.append(h2.window_update(stream.id, stream.unreturned))
            stream.receive_window += stream.unreturned
            stream.unreturned = 0

    def return_to_connection(self, count: int) -> None:
        self.unreturned += count
        has_enough = min(self.receive_window, self.limits.connection_window_bytes // 2)  # streams that wait may hold most of it
        if self.unreturned and self.unreturned >= has_enough:
            self.output.append(h2.window_update(0, self.unreturned))
            self.receive_window += self.unreturned
            self.unreturned = 0

    def _finish(self, stream: Stream) -> None:
        self.count_answer(has_data=stream.has_sent_data)
        self.forget(stream)
