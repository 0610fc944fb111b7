"""The state of one HTTP/2 connection (RFC 9113), for either end and without a socket.

Bytes go in by `receive`, what happens is told to each stream's listener, and `output` is what must be written. gRPC needs
few of HTTP/2's freedoms; there is no push and no priority. The doors' and the adapter's connections sit on this.
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

_SENT_AT_ONCE = 16
"""Streams whose answers go on when a frame makes room; a thousand may wait for it, and the others are sent with the next frames."""

_GOODBYE = b"goodbye?"
"""Our only ping: its acknowledgement tells that the client has read that we leave."""


class Http2Connection:
    """One end of a connection. `accept` is told of streams that the other end opens; None at a client's end.

    `answer_known` is asked for the answer to a call that came whole, before anything is made of it.
    """

    def __init__(
        self,
        known: KnownBlocks,
        limits: Http2Limits,
        *,
        accept: Callable[[Stream], StreamListener] | None = None,
        answer_known: Callable[[WholeCall], WholeAnswer | None] | None = None,
    ) -> None:
        self._state = ConnectionState(limits, is_server=accept is not None)
        self._sender = Http2Sender(self._state)
        self.output = self._state.output
        self.streams = self._state.streams
        self.send_headers, self.send_data = self._sender.send_headers, self._sender.send_data
        self.consumed, self.reset = self._state.consumed, self._state.reset
        self.peer_is_leaving = False
        """The peer has sent GOAWAY: it takes no new streams."""
        self.peer_max_streams = h2.MAX_STREAM_ID
        self.is_leaving = False
        """Streams that are not under way are refused."""
        self._accept = accept
        self._answer_known = answer_known
        self._limits = limits
        self._frames = h2.FrameReader(limits.max_frame_bytes)
        self._decoder = HeaderDecoder(known, max_bytes=limits.max_header_bytes)
        self._preface = bytearray() if accept else None
        self._last_peer_stream = 0
        self._next_own_stream = 1
        self._block: tuple[int, int, bytearray] | None = None

    def start(self) -> None:
        """Send what opens a connection."""
        self.output += opening(self._limits, is_server=self._accept is not None)

    # Receiving

    def receive(self, data: bytes, most: int = sys.maxsize) -> bool:
        """Take what arrived, and read so many frames of it; whether there is more to do, by `go_on`.

        Raises Http2Error: then `leave` and close.
        """
        if self._preface is not None:
            data = h2.after_preface(self._preface, data)
            if self._preface.startswith(h2.PREFACE):
                self._preface = None
        self._frames.add(data)
        is_behind = self.go_on(most)
        while is_behind and most == sys.maxsize:
            is_behind = self.go_on(most)
        return is_behind

    def go_on(self, most: int) -> bool:
        """As `receive`, of what has arrived before; and of what waits for the peer's windows, so many streams' go on."""
        frames = self._frames.take(most)
        at, count = 0, len(frames)
        while at < count:
            kind, flags, stream_id, payload = frames[at]
            at += 1
            if self._block is not None and kind != h2.CONTINUATION:
                raise Http2Error("a header block was interrupted by another frame")
            if kind == h2.HEADERS and at < count and self._answer_known is not None:
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
        if self._sender.may_go_on:
            self._sender.go_on(max(most, _SENT_AT_ONCE))
        return self._frames.is_behind or self._sender.may_go_on

    @property
    def awaits_preface(self) -> bool:
        return self._preface is not None

    @property
    def last_peer_stream(self) -> int:
        """The youngest that the other end has opened."""
        return self._last_peer_stream

    @property
    def answered(self) -> int:
        """How many streams have ended well."""
        return self._state.answered

    def calm(self) -> None:
        """To be called about once a second: what comes slowly, such as a keep-alive's pings, is no nuisance."""
        self._state.calm()

    def end(self, most: int = sys.maxsize) -> bool:
        """The connection is gone: tell so many of its streams, the oldest first; whether there are more."""
        for stream in tuple(itertools.islice(self.streams.values(), most)):
            self._state.forget(stream).on_reset()
        return bool(self.streams)

    # Sending

    def open(self, listener: StreamListener) -> Stream:
        """A new stream of our own; its head is to be sent at once."""
        stream = self._state.new_stream(self._next_own_stream)
        self._next_own_stream += 2
        stream.listener = listener
        return stream

    @property
    def may_open(self) -> bool:
        return not self.peer_is_leaving and len(self.streams) < self.peer_max_streams and self._next_own_stream < h2.MAX_STREAM_ID

    def announce_leaving(self) -> None:
        """Ask a client for no new streams; it is left when it has read that, since until then it may open some (RFC 9113, 6.8)."""
        self.output += (h2.goaway(h2.MAX_STREAM_ID, Code.NO_ERROR), h2.ping(_GOODBYE))

    def leave(self, code: Code = Code.NO_ERROR, reason: str = "") -> None:
        """Take no new streams; those under way may end."""
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
            state.return_to_connection(size)
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
        if size != len(data):
            state.consumed(stream, size - len(data))
        listener = stream.listener
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
        if len(block) > self._limits.max_header_bytes:  # before it is whole, or it grows without end
            raise Http2Error("the header block is too large", Code.ENHANCE_YOUR_CALM)
        if flags & h2.END_HEADERS:
            self._block = None
            self._on_block(first_flags, stream_id, bytes(block))

    def _on_block(self, flags: int, stream_id: int, block: bytes) -> None:
        if len(block) > self._limits.max_header_bytes:
            raise Http2Error("the header block is too large", Code.ENHANCE_YOUR_CALM)
        if len(block) > LARGE_BLOCK_BYTES and not self._decoder.knows(block):
            self._state.nuisance.count(FRAME * (len(block) // LARGE_BLOCK_BYTES))
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
            self._state.nuisance.count(LATE)  # trailers of a stream that we have ended
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
            if self._decoder.may_have_table:
                self._decoder.forbid_table()
            else:
                self._state.nuisance.count()  # we have sent no more of them
            return
        self._state.nuisance.count(FRAME + len(self.streams))  # each has a window that may change
        for setting, value in h2.read_settings(payload).items():
            match setting:
                case Setting.INITIAL_WINDOW_SIZE:
                    self._sender.set_initial_window(value)
                    self._sender.go_on(_SENT_AT_ONCE)
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
        elif payload == _GOODBYE:
            self.leave()
        else:
            self._state.nuisance.count()

    def _on_goaway(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._require_connection(stream_id, "GOAWAY")
        if len(payload) < 8:
            raise Http2Error("a GOAWAY frame has 8 bytes at least", Code.FRAME_SIZE_ERROR)
        self._state.nuisance.count()
        self.peer_is_leaving = True
        last_stream_id = int.from_bytes(payload[:4], "big") & h2.MAX_STREAM_ID
        for stream in [each for each in self.streams.values() if self._accept is None and each.id > last_stream_id]:
            self._state.forget(stream).on_reset()

    def _on_window_update(self, flags: int, stream_id: int, payload: bytes) -> None:
        increment = h2.read_word(payload, "WINDOW_UPDATE") & h2.MAX_WINDOW_BYTES
        if increment == 0:
            raise Http2Error("a WINDOW_UPDATE of 0")
        if stream_id == 0:
            was_wanted = self._sender.widen(increment)
            self._sender.go_on(_SENT_AT_ONCE)
        elif (stream := self.streams.get(stream_id)) is not None:
            was_wanted = self._sender.widen_stream(stream, increment)
        else:
            self._refuse_idle(stream_id)
            self._state.nuisance.count(LATE)
            return
        if not was_wanted:
            self._state.nuisance.count()

    def _on_push_promise(self, flags: int, stream_id: int, payload: bytes) -> None:
        raise Http2Error("a PUSH_PROMISE, which was not allowed")

    def _on_nothing(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._state.nuisance.count()

    def _receive_whole(self, stream_id: int, call: WholeCall) -> None:
        """A call in two frames; one that came before is answered without a stream where nothing is in its way."""
        block, data = call
        state = self._state
        is_new = stream_id > self._last_peer_stream
        is_in_order = is_new and stream_id % 2 and len(self.streams) < self._limits.max_streams
        may_be_known = self._decoder.depends_on_nothing and not self.is_leaving and self._sender.has_begun
        fits = self._sender.has_room_for_whole and len(data) <= state.receive_window
        asks = self._answer_known if is_in_order and fits and may_be_known else None
        if asks is not None and (answer := asks(call)) is not None:
            self._last_peer_stream = stream_id
            state.receive_window -= len(data)
            state.return_to_connection(len(data))
            self._sender.send_whole(stream_id, answer)
            return
        self._on_block(h2.END_HEADERS, stream_id, block)
        stream = self.streams.get(stream_id)
        if stream is not None and is_new and may_be_known:  # else they are a call's trailers, and the last of its data
            stream.whole = call
        self._on_data(h2.END_STREAM, stream_id, data)

    def _require_connection(self, stream_id: int, what: str) -> None:
        if stream_id:
            raise Http2Error(f"a {what} frame for a stream; it is for the connection")

    def _refuse_idle(self, stream_id: int) -> None:
        opened = self._last_peer_stream if self._accept else self._next_own_stream - 2
        if stream_id == 0 or (stream_id > opened and not self.is_leaving):
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
"""By type of frame, each with its flags, stream and payload."""
