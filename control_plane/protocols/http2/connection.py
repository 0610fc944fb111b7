"""Sans-I/O protocol engine of one HTTP/2 connection (RFC 9113), for either end.

Bytes go in by `receive`, events go to each stream's listener, and `output` holds what must be written to the
socket. It supports the part of HTTP/2 that gRPC needs: no push and no priorities. The gRPC frontend and the
adapter that calls Triton build their connections on it.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping
from typing import Any

from control_plane.protocols.http2 import frames as h2
from control_plane.protocols.http2.frames import Code, Http2Error, Setting
from control_plane.protocols.http2.headers import HeaderDecoder, KnownBlocks
from control_plane.protocols.http2.limits import Http2Limits, opening
from control_plane.protocols.http2.nuisance import FRAME, LARGE_BLOCK_BYTES, LATE
from control_plane.protocols.http2.sending import Http2Sender
from control_plane.protocols.http2.state import ConnectionState
from control_plane.protocols.http2.stream import Stream, StreamListener, WholeAnswer, WholeCall, whole_call

_RESUMED_AT_ONCE = 16
"""Streams that are resumed when a frame opens the window. A thousand may wait: the others follow with the
next frames, so that one frame never causes much work."""

_DRAIN_PING = b"goodbye?"
"""Payload of the only PING that we send: its acknowledgement proves that the client has read our first
GOAWAY."""


class Http2Connection:
    """Protocol engine of one end of a connection.

    A server passes `accept`, which returns the listener for each stream that the peer opens; a client passes
    None. `answer_verbatim` may answer a call that arrived whole (`WholeCall`) before a stream is created for it.
    """

    def __init__(
        self,
        known: KnownBlocks,
        limits: Http2Limits,
        *,
        accept: Callable[[Stream], StreamListener] | None = None,
        answer_verbatim: Callable[[WholeCall], WholeAnswer | None] | None = None,
    ) -> None:
        self._state = ConnectionState(limits, is_server=accept is not None)
        self._sender = Http2Sender(self._state)
        self.output = self._state.output
        self.streams = self._state.streams
        self.send_headers, self.send_data = self._sender.send_headers, self._sender.send_data
        self.consumed, self.reset = self._state.consumed, self._state.reset
        self.peer_is_draining = False
        """Whether the peer has sent GOAWAY: it accepts no new streams."""
        self.peer_max_streams = h2.MAX_STREAM_ID
        self.is_leaving = False
        """Whether we have sent our last GOAWAY: new streams of the peer are refused."""
        self._accept = accept
        self._answer_verbatim = answer_verbatim
        self._limits = limits
        self._frames = h2.FrameReader(limits.max_frame_bytes)
        self._decoder = HeaderDecoder(known, max_bytes=limits.max_header_bytes)
        self._preface = bytearray() if accept else None
        self._last_peer_stream = 0
        self._next_own_stream = 1
        self._block: tuple[int, int, bytearray] | None = None

    def start(self) -> None:
        """Send the connection preface and our settings."""
        self.output += opening(self._limits, is_server=self._accept is not None)

    # Receiving

    def receive(self, data: bytes, most: int = sys.maxsize) -> bool:
        """Add data that arrived and handle at most `most` frames; returns whether `go_on` has more to do.

        Raises Http2Error: the caller must then `leave` with its code and close the connection.
        """
        if self._preface is not None:
            data = h2.after_preface(self._preface, data)
            if self._preface.startswith(h2.PREFACE):
                self._preface = None
        self._frames.add(data)
        has_backlog = self.go_on(most)
        while has_backlog and most == sys.maxsize:
            has_backlog = self.go_on(most)
        return has_backlog

    def go_on(self, most: int) -> bool:
        """Handle at most `most` further frames that have arrived, and resume as many streams that wait for a
        window.

        Returns and raises as `receive` does.
        """
        frames = self._frames.split_more(most)
        at, count = 0, len(frames)
        while at < count:
            kind, flags, stream_id, payload = frames[at]
            at += 1
            # Nothing may come between the frames of a header block, since HPACK's table depends on their
            # order (6.10).
            if self._block is not None and kind != h2.CONTINUATION:
                raise Http2Error("a header block was interrupted by another frame")
            if kind == h2.HEADERS and at < count and self._answer_verbatim is not None:
                call = whole_call(frames[at - 1], frames[at])
                if call is not None:
                    self._receive_whole(stream_id, call)
                    at += 1
                    continue
            handler = _HANDLERS.get(kind)
            if handler is None:
                self._state.nuisance.count()
            else:
                handler(self, flags, stream_id, payload)
        if self._sender.can_resume:
            self._sender.go_on(max(most, _RESUMED_AT_ONCE))
        return self._frames.has_backlog or self._sender.can_resume

    @property
    def awaits_preface(self) -> bool:
        return self._preface is not None

    @property
    def last_peer_stream_id(self) -> int:
        """The highest id of a stream that the peer has opened."""
        return self._last_peer_stream

    @property
    def answered(self) -> int:
        """The number of streams that both ends have completed."""
        return self._state.answered

    def on_second(self) -> None:
        """Drain the nuisance bucket; to be called about once a second, so that slow keep-alive pings never
        fill it."""
        self._state.on_second()

    def end(self, most: int = sys.maxsize) -> bool:
        """The connection is gone: end at most `most` of its streams, the oldest first; returns whether more
        are left."""
        for stream in tuple(itertools.islice(self.streams.values(), most)):
            self._state.forget(stream).on_reset()
        return bool(self.streams)

    # Sending

    def open(self, listener: StreamListener) -> Stream:
        """Open a stream of our own; the caller must send its head at once, so that stream ids arrive in
        order."""
        stream = self._state.new_stream(self._next_own_stream)
        self._next_own_stream += 2
        stream.listener = listener
        return stream

    @property
    def may_open(self) -> bool:
        return not self.peer_is_draining and len(self.streams) < self.peer_max_streams and self._next_own_stream < h2.MAX_STREAM_ID

    def announce_drain(self) -> None:
        """Begin a graceful shutdown: ask a client for no new streams, and find out when it has read that.

        Until then the client may still open streams, so `leave` follows when the ping is acknowledged (RFC
        9113, 6.8).
        """
        self.output += (h2.goaway(h2.MAX_STREAM_ID, Code.NO_ERROR), h2.ping(_DRAIN_PING))

    def leave(self, code: Code = Code.NO_ERROR, reason: str = "") -> None:
        """Send the last GOAWAY: new streams are refused, open ones may complete."""
        if not self.is_leaving:
            self.is_leaving = True
            self.output.append(h2.goaway(self._last_peer_stream, code, reason))

    # Frames

    def _on_data(self, flags: int, stream_id: int, payload: bytes | memoryview) -> None:
        state, size = self._state, len(payload)
        state.receive_window -= size
        if state.receive_window < 0:
            raise Http2Error("more data than the connection's window holds", Code.FLOW_CONTROL_ERROR)
        data = h2.without_padding(flags, payload) if flags & h2.PADDED else payload
        stream = self.streams.get(stream_id)
        if stream is None:
            self._refuse_idle(stream_id)
            state.nuisance.count(LATE)
            state.return_to_connection(size)  # nobody will consume it, and the connection's window would shrink for ever
            return
        stream.receive_window -= size
        if stream.receive_window < 0:
            raise Http2Error("more data than the stream's window holds", Code.FLOW_CONTROL_ERROR)
        if stream.remote_is_closed:
            raise Http2Error("data after the end of the stream", Code.STREAM_CLOSED)
        ends = bool(flags & h2.END_STREAM)
        if not data and not ends:
            state.nuisance.count()
        stream.held_bytes += size
        if size != len(data):  # padding counts for flow control (6.1), and no listener will consume it
            state.consumed(stream, size - len(data))
        listener = stream.listener  # first, since `remote_ends` may drop the stream and with it the listener
        if ends:
            state.remote_ends(stream)
        listener.on_data(data, ends=ends)

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if flags & (h2.PADDED | h2.HAS_PRIORITY):
            payload = bytes(h2.without_padding(flags, payload, skip=5 if flags & h2.HAS_PRIORITY else 0))
        if flags & h2.END_HEADERS:
            self._on_block(flags, stream_id, payload)
        else:
            self._block = (flags, stream_id, bytearray(payload))

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if self._block is None or self._block[1] != stream_id:
            raise Http2Error("a CONTINUATION without its HEADERS")
        first_flags, _, block = self._block
        block += payload
        self._state.nuisance.count()
        if len(block) > self._limits.max_header_bytes:  # checked with each frame, or the block could grow without end
            raise Http2Error("the header block is too large", Code.ENHANCE_YOUR_CALM)
        if flags & h2.END_HEADERS:
            self._block = None
            self._on_block(first_flags, stream_id, bytes(block))

    def _on_block(self, flags: int, stream_id: int, block: bytes) -> None:
        if len(block) > self._limits.max_header_bytes:
            raise Http2Error("the header block is too large", Code.ENHANCE_YOUR_CALM)
        if len(block) > LARGE_BLOCK_BYTES and not self._decoder.knows(block):
            self._state.nuisance.count(FRAME * (len(block) // LARGE_BLOCK_BYTES))
        # Decoded even for a stream that is refused below: skipping a block would corrupt HPACK's table for
        # later ones.
        fields = self._decoder.decode(block)
        ends = bool(flags & h2.END_STREAM)
        stream = self.streams.get(stream_id)
        if stream is None:
            stream = self._opened_by_peer(stream_id)
            if stream is None:
                return
        elif stream.remote_is_closed:
            raise Http2Error("headers after the end of the stream", Code.STREAM_CLOSED)
        listener = stream.listener
        if ends:
            self._state.remote_ends(stream)
        listener.on_headers(fields, ends=ends)

    def _opened_by_peer(self, stream_id: int) -> Stream | None:
        if self._accept is None:
            self._refuse_idle(stream_id)
            return None
        if stream_id % 2 == 0:
            raise Http2Error("a client's streams have odd numbers")
        if stream_id <= self._last_peer_stream:
            self._state.nuisance.count(LATE)  # trailers of a stream that we have ended already
            return None
        if self.is_leaving or len(self.streams) >= self._limits.max_streams:
            if not self.is_leaving:
                self._last_peer_stream = stream_id
            self._state.nuisance.count()
            self.output.append(h2.rst_stream(stream_id, Code.REFUSED_STREAM))
            return None
        self._last_peer_stream = stream_id
        stream = self._state.new_stream(stream_id)
        stream.listener = self._accept(stream)
        return stream

    def _on_rst_stream(self, flags: int, stream_id: int, payload: bytes) -> None:
        h2.read_word(payload, "RST_STREAM")
        stream = self.streams.get(stream_id)
        if stream is None:
            self._refuse_idle(stream_id)
            self._state.nuisance.count(LATE)
            return
        self._state.forget(stream).on_reset()
        self._state.count_reset(stream)

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._require_connection(stream_id, "SETTINGS")
        if flags & h2.ACK:
            if payload:
                raise Http2Error("an acknowledgement of SETTINGS is empty", Code.FRAME_SIZE_ERROR)
            if self._decoder.table_is_allowed:
                self._decoder.forbid_table()
            else:
                self._state.nuisance.count()  # we send SETTINGS once, so this acknowledges nothing
            return
        self._state.nuisance.count(FRAME + len(self.streams))  # a new initial window is applied to every open stream
        for setting, value in h2.read_settings(payload).items():
            match setting:
                case Setting.INITIAL_WINDOW_SIZE:
                    self._sender.set_initial_window(value)
                    self._sender.go_on(_RESUMED_AT_ONCE)
                case Setting.MAX_FRAME_SIZE:
                    if not h2.DEFAULT_MAX_FRAME_BYTES <= value < 2**24:
                        raise Http2Error(f"MAX_FRAME_SIZE {value} is out of range")
                    self._state.max_send_frame = value
                case Setting.MAX_CONCURRENT_STREAMS:
                    self.peer_max_streams = value
        self.output.append(h2.SETTINGS_ACK)

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._require_connection(stream_id, "PING")
        if len(payload) != 8:
            raise Http2Error("a PING frame has 8 bytes", Code.FRAME_SIZE_ERROR)
        if not flags & h2.ACK:
            self._state.nuisance.count()
            self.output.append(h2.ping_ack(payload))
        elif payload == _DRAIN_PING:
            self.leave()  # the client has read our first GOAWAY, so every stream that it opens from now on may be refused
        else:
            self._state.nuisance.count()

    def _on_goaway(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._require_connection(stream_id, "GOAWAY")
        if len(payload) < 8:
            raise Http2Error("a GOAWAY frame has 8 bytes at least", Code.FRAME_SIZE_ERROR)
        self._state.nuisance.count()
        self.peer_is_draining = True
        last_stream_id = int.from_bytes(payload[:4], "big") & h2.MAX_STREAM_ID
        for stream in [each for each in self.streams.values() if self._accept is None and each.id > last_stream_id]:
            self._state.forget(stream).on_reset()

    def _on_window_update(self, flags: int, stream_id: int, payload: bytes) -> None:
        increment = h2.read_word(payload, "WINDOW_UPDATE") & h2.MAX_WINDOW_BYTES
        if increment == 0:  # an error by RFC 9113, 6.9
            raise Http2Error("a WINDOW_UPDATE of 0")
        if stream_id == 0:
            was_wanted = self._sender.widen(increment)
            self._sender.go_on(_RESUMED_AT_ONCE)
        elif (stream := self.streams.get(stream_id)) is not None:
            was_wanted = self._sender.widen_stream(stream, increment)
        else:
            self._refuse_idle(stream_id)
            self._state.nuisance.count(LATE)
            return
        if not was_wanted:  # many small updates that nothing waits for are a known flood
            self._state.nuisance.count()

    def _on_push_promise(self, flags: int, stream_id: int, payload: bytes) -> None:
        raise Http2Error("a PUSH_PROMISE, which was not allowed")

    def _on_nothing(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._state.nuisance.count()

    def _receive_whole(self, stream_id: int, call: WholeCall) -> None:
        """Handle a call of two frames: answer a known one without creating a stream, if nothing prevents
        that."""
        block, data = call
        state = self._state
        is_new = stream_id > self._last_peer_stream
        is_in_order = is_new and stream_id % 2 and len(self.streams) < self._limits.max_streams
        may_be_known = self._decoder.is_stateless and not self.is_leaving and self._sender.has_sent_headers
        fits = self._sender.has_window_for_whole and len(data) <= state.receive_window
        asks = self._answer_verbatim if is_in_order and fits and may_be_known else None
        if asks is not None and (answer := asks(call)) is not None:
            self._last_peer_stream = stream_id
            state.receive_window -= len(data)
            state.return_to_connection(len(data))
            self._sender.send_whole(stream_id, answer)
            return
        self._on_block(h2.END_HEADERS, stream_id, block)
        stream = self.streams.get(stream_id)
        if stream is not None and is_new and may_be_known:  # on an older stream, the HEADERS would be a call's trailers
            stream.whole = call
        self._on_data(h2.END_STREAM, stream_id, data)

    def _require_connection(self, stream_id: int, what: str) -> None:
        if stream_id:
            raise Http2Error(f"a {what} frame for a stream; it is for the connection")

    def _refuse_idle(self, stream_id: int) -> None:
        """Raise Http2Error for a frame on a stream that was never opened; on one that has ended, late frames
        are normal."""
        opened = self._last_peer_stream if self._accept else self._next_own_stream - 2
        if stream_id == 0 or (stream_id > opened and not self.is_leaving):  # when leaving, refused streams are not noted
            raise Http2Error(f"a frame for stream {stream_id}, which was never opened")


_HANDLERS: Mapping[int, Callable[[Http2Connection, int, int, Any], None]] = {
    h2.DATA: Http2Connection._on_data,
    h2.HEADERS: Http2Connection._on_headers,
    h2.PRIORITY: Http2Connection._on_nothing,
    h2.RST_STREAM: Http2Connection._on_rst_stream,
    h2.SETTINGS: Http2Connection._on_settings,
    h2.PUSH_PROMISE: Http2Connection._on_push_promise,
    h2.PING: Http2Connection._on_ping,
    h2.GOAWAY: Http2Connection._on_goaway,
    h2.WINDOW_UPDATE: Http2Connection._on_window_update,
    h2.CONTINUATION: Http2Connection._on_continuation,
}
"""Handler by frame type, called with flags, stream id and payload; frames of unknown types are ignored (RFC
9113, 5.5)."""
