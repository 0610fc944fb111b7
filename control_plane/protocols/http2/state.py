"""State of one HTTP/2 connection that its receiver and its sender share, and the life of its streams.

`protocols/http2/receiving` reads the peer's frames, `protocols/http2/sending` writes ours. Streams are created
and ended here, by the rules of RFC 9113, 5.1.
"""

from __future__ import annotations

from control_plane.protocols.http2 import frames as h2
from control_plane.protocols.http2.flow_control import FlowControl
from control_plane.protocols.http2.frames import Code, Http2Error
from control_plane.protocols.http2.limits import Http2Limits
from control_plane.protocols.http2.nuisance import Nuisance
from control_plane.protocols.http2.stream import NULL_LISTENER, Stream, StreamListener


class ConnectionState:
    """State of one HTTP/2 connection: open streams, output, flow control, and whether either end leaves."""

    __slots__ = (
        "answered",
        "end_reason",
        "flow",
        "is_leaving",
        "is_server",
        "last_peer_stream",
        "limits",
        "next_own_stream",
        "nuisance",
        "output",
        "peer_is_draining",
        "peer_max_streams",
        "streams",
    )

    def __init__(self, limits: Http2Limits, *, is_server: bool) -> None:
        self.limits = limits
        self.is_server = is_server
        self.output: list[bytes | memoryview] = []
        self.streams: dict[int, Stream] = {}
        self.flow = FlowControl(limits, self.output)
        self.nuisance = Nuisance(is_counted=is_server)  # a client's end trusts its server, which is our Triton
        self.answered = 0
        """Streams that both ends have completed."""
        self.last_peer_stream = 0
        """The highest id of a stream that the peer has opened."""
        self.next_own_stream = 1
        self.is_leaving = False
        """Whether we have sent our last GOAWAY: new streams of the peer are refused."""
        self.peer_is_draining = False
        """Whether the peer has sent GOAWAY: it accepts no new streams."""
        self.peer_max_streams = h2.MAX_STREAM_ID
        self.end_reason = ""
        """Why streams are ended before their time, in the peer's words; empty where it says nothing."""

    def may_open(self) -> bool:
        """Whether the peer accepts another stream of ours."""
        return not self.peer_is_draining and len(self.streams) < self.peer_max_streams and self.next_own_stream < h2.MAX_STREAM_ID

    def open(self, listener: StreamListener) -> Stream:
        """Create a stream of our own."""
        stream = self.new_stream(self.next_own_stream)
        self.next_own_stream += 2
        stream.listener = listener
        return stream

    def new_stream(self, stream_id: int) -> Stream:
        """Create a stream, which has no listener yet."""
        stream = Stream(
            stream_id,
            send_window=self.flow.initial_send_window,
            receive_window=self.limits.stream_window_bytes,
            born=self.nuisance.age_ticks,
        )
        self.streams[stream_id] = stream
        return stream

    def refuse_idle(self, stream_id: int) -> None:
        """Raise Http2Error for a frame on a stream that was never opened; on one that has ended, late frames
        are normal."""
        opened = self.last_peer_stream if self.is_server else self.next_own_stream - 2
        if stream_id == 0 or (stream_id > opened and not self.is_leaving):  # when leaving, refused streams are not noted
            raise Http2Error(f"a frame for stream {stream_id}, which was never opened")

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
            self.nuisance.expect_late()

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

    def forget(self, stream: Stream) -> StreamListener:
        """Drop a stream and return its listener.

        The stream loses its reference to the listener: the two form a cycle, which would keep the call's
        message in memory until the next garbage collection.
        """
        listener, stream.listener = stream.listener, NULL_LISTENER
        if self.streams.pop(stream.id, None) is not None:
            stream.local_is_closed = stream.remote_is_closed = True
            stream.pending = ()
            if stream.held_bytes or self.flow.blocked:
                self.flow.forget(stream)
        return listener

    def _finish(self, stream: Stream) -> None:
        self.count_answer(has_data=stream.has_sent_data)
        self.forget(stream)
