"""Receiving half of one HTTP/2 connection: reads the peer's frames and acts on each by its type.

Source: RFC 9113, 6. Used by `protocols/http2/connection`; what must be written in return goes through
`protocols/http2/sending`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from control_plane.protocols.http2 import frames as h2
from control_plane.protocols.http2.frames import Code, Http2Error, Setting
from control_plane.protocols.http2.headers import Fields, HeaderBlockTooLarge, HeaderDecoder, KnownBlocks
from control_plane.protocols.http2.nuisance import FRAME, LARGE_BLOCK_BYTES, LATE
from control_plane.protocols.http2.sending import Http2Sender
from control_plane.protocols.http2.state import ConnectionState
from control_plane.protocols.http2.stream import Stream, StreamListener, WholeAnswer, WholeCall, whole_call

_MAX_SAID_BYTES = 100
"""Most bytes of a GOAWAY's own words that are told on."""
_RESUMED_AT_ONCE = 16
"""Streams that are resumed when a frame opens the window. A thousand may wait: the others follow with the
next frames, so that one frame never causes much work."""


class Http2Receiver:
    """Reader of one connection's frames, which changes the connection's state and calls the streams'
    listeners."""

    __slots__ = ("_accept", "_answer_verbatim", "_block", "_decoder", "_frames", "_preface", "_refuse_head", "_sender", "_state")

    def __init__(
        self,
        state: ConnectionState,
        sender: Http2Sender,
        known: KnownBlocks,
        *,
        accept: Callable[[Stream], StreamListener] | None,
        answer_verbatim: Callable[[WholeCall], WholeAnswer | None] | None,
        refuse_head: Callable[[bytes], bytes | None] | None,
    ) -> None:
        self._state = state
        self._sender = sender
        self._accept = accept
        self._answer_verbatim, self._refuse_head = answer_verbatim, refuse_head
        self._frames = h2.FrameReader(state.limits.max_frame_bytes, in_runs=True)
        self._decoder = HeaderDecoder(known, max_bytes=state.limits.max_header_bytes)
        self._preface = bytearray() if accept else None
        self._block: tuple[int, int, bytearray | None] | None = None
        """The header block that has begun: flags, stream id and what has arrived of it, None where that is too much."""

    @property
    def awaits_preface(self) -> bool:
        return self._preface is not None

    @property
    def unread_bytes(self) -> int:
        return self._frames.left_bytes

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
        """Handle at most `most` further frames that have arrived, or one more to have a call whole, and resume as many streams that
        wait for a window.

        Returns and raises as `receive` does.
        """
        frames = self._frames.split_more(most)
        if frames and frames[-1][0] == h2.HEADERS:  # not to part the two frames of a call
            frames += self._frames.split_more(1)
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
            if kind == h2.HEADERS and flags == h2.END_HEADERS and self._has_refused(stream_id, bytes(payload)):
                continue
            handler = _HANDLERS.get(kind)
            if handler is None:
                self._state.nuisance.count()
            else:
                handler(self, flags, stream_id, payload)
        flow = self._state.flow
        if not flow.blocked:
            return self._frames.has_backlog
        self._sender.resume_blocked(max(most, _RESUMED_AT_ONCE))
        return self._frames.has_backlog or flow.can_resume

    # One method for each type of frame

    def _on_data(self, flags: int, stream_id: int, payload: bytes | memoryview) -> None:
        state, size = self._state, len(payload)
        data = h2.without_padding(flags, payload) if flags & h2.PADDED else payload
        stream = state.streams.get(stream_id)
        if stream is None:
            state.refuse_idle(stream_id)
            if not flags & h2.MORE:  # once for each frame
                state.nuisance.count(LATE)
            # It counts for the connection's window all the same (RFC 9113, 5.1), or both ends would disagree on that.
            state.flow.received(None, size)
            return
        state.flow.received(stream, size)
        if stream.remote_is_closed:
            raise Http2Error("data after the end of the stream", Code.STREAM_CLOSED)
        ends = bool(flags & h2.END_STREAM)
        if not data and not ends:
            state.nuisance.count()
        if size != len(data):  # padding counts for flow control (6.1), and no listener will consume it
            state.flow.consumed(stream, size - len(data))
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
        self._state.nuisance.count()
        if block is not None:
            block += payload
            if len(block) > self._state.limits.max_header_bytes:  # checked with each frame, or the block could grow without end
                self._pass_over(HeaderBlockTooLarge("the header block is too large"))
                block, self._block = None, (first_flags, stream_id, None)
        if flags & h2.END_HEADERS:
            self._block = None
            self._on_block(first_flags, stream_id, None if block is None else bytes(block))

    def _on_block(self, flags: int, stream_id: int, block: bytes | None, *, whole: WholeCall | None = None) -> None:
        state, is_stateless = self._state, self._is_stateless
        # Decoded even for a stream that is refused below: skipping a block would corrupt HPACK's table for
        # later ones.
        fields = self._fields_of(block)
        ends = bool(flags & h2.END_STREAM)
        stream = state.streams.get(stream_id)
        if stream is None:
            stream = self._opened_by_peer(stream_id)
            if stream is None:
                return
            stream.block = block if is_stateless else None
            stream.whole = whole
        elif stream.remote_is_closed:
            raise Http2Error("headers after the end of the stream", Code.STREAM_CLOSED)
        listener = stream.listener
        if fields is None:
            state.reset(stream, Code.ENHANCE_YOUR_CALM)  # gRPC maps it to RESOURCE_EXHAUSTED
            listener.on_reset()
            return
        if ends:
            state.remote_ends(stream)
        listener.on_headers(fields, ends=ends)

    def _fields_of(self, block: bytes | None) -> Fields | None:
        """Decode a block; None: it is too large, and ends its stream alone. Raises Http2Error."""
        if block is None or len(block) > self._state.limits.max_header_bytes:
            self._pass_over(HeaderBlockTooLarge("the header block is too large"))
            return None
        if len(block) > LARGE_BLOCK_BYTES and not self._decoder.knows(block):
            self._state.nuisance.count(FRAME * (len(block) // LARGE_BLOCK_BYTES))
        try:
            return self._decoder.decode(block)
        except HeaderBlockTooLarge as exc:
            self._pass_over(exc)
            return None

    def _pass_over(self, error: HeaderBlockTooLarge) -> None:
        """Pass over a head that is too large, so that other calls go on: a proxy's clients may share the connection. Raises the
        error where the table would be lost with it."""
        if self._accept is None or self._decoder.table_is_allowed:
            raise error
        self._state.nuisance.count()

    def _opened_by_peer(self, stream_id: int) -> Stream | None:
        state = self._state
        if self._accept is None:
            state.refuse_idle(stream_id)
            return None
        if stream_id % 2 == 0:
            raise Http2Error("a client's streams have odd numbers")
        if stream_id <= state.last_peer_stream:
            state.nuisance.count(LATE)  # trailers of a stream that we have ended already
            return None
        if state.is_leaving or len(state.streams) >= state.limits.max_streams:
            # Once we have sent the last GOAWAY, the highest stream that we handle is the one which it named.
            if not state.is_leaving:
                state.last_peer_stream = stream_id
            state.nuisance.count()
            # By this code the client knows that nothing was done for it, and may send it again (RFC 9113, 8.7).
            state.output.append(h2.rst_stream(stream_id, Code.REFUSED_STREAM))
            return None
        state.last_peer_stream = stream_id
        stream = state.new_stream(stream_id)
        stream.listener = self._accept(stream)
        return stream

    def _on_rst_stream(self, flags: int, stream_id: int, payload: bytes) -> None:
        code = h2.read_word(payload, "RST_STREAM")
        state = self._state
        stream = state.streams.get(stream_id)
        if stream is None:
            state.refuse_idle(stream_id)
            state.nuisance.count(LATE)
            return
        before, state.end_reason = state.end_reason, f"RST_STREAM {h2.name_of_code(code)}"
        state.forget(stream).on_reset()
        state.end_reason = before
        state.nuisance.count_reset(born=stream.born)

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        state = self._state
        _require_connection(stream_id, "SETTINGS")
        if flags & h2.ACK:
            if payload:
                raise Http2Error("an acknowledgement of SETTINGS is empty", Code.FRAME_SIZE_ERROR)
            # Not before: blocks that the peer sent before it read our SETTINGS may use its table.
            if self._decoder.table_is_allowed:
                self._decoder.forbid_table()
            else:
                state.nuisance.count()  # we send SETTINGS once, so this acknowledges nothing
            return
        state.nuisance.count(FRAME + len(state.streams))  # a new initial window is applied to every open stream
        for setting, value in h2.read_settings(payload).items():
            match setting:
                case Setting.INITIAL_WINDOW_SIZE:
                    state.flow.set_initial_window(value, state.streams.values())
                    self._sender.resume_blocked(_RESUMED_AT_ONCE)
                case Setting.MAX_FRAME_SIZE:
                    if not h2.DEFAULT_MAX_FRAME_BYTES <= value < 2**24:
                        raise Http2Error(f"MAX_FRAME_SIZE {value} is out of range")
                    state.flow.max_send_frame = value
                case Setting.MAX_CONCURRENT_STREAMS:
                    state.peer_max_streams = value
        state.output.append(h2.SETTINGS_ACK)

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        _require_connection(stream_id, "PING")
        if len(payload) != 8:
            raise Http2Error("a PING frame has 8 bytes", Code.FRAME_SIZE_ERROR)
        if not flags & h2.ACK:
            self._state.nuisance.count()
            self._state.output.append(h2.ping_ack(payload))
        elif payload == h2.DRAIN_PING:
            # The client has read our first GOAWAY, so every stream that it opens from now on may be refused.
            self._sender.leave()
        else:
            self._state.nuisance.count()

    def _on_goaway(self, flags: int, stream_id: int, payload: bytes) -> None:
        _require_connection(stream_id, "GOAWAY")
        if len(payload) < 8:
            raise Http2Error("a GOAWAY frame has 8 bytes at least", Code.FRAME_SIZE_ERROR)
        state = self._state
        state.nuisance.count()
        state.peer_is_draining = True
        last_stream_id = int.from_bytes(payload[:4], "big") & h2.MAX_STREAM_ID
        said = payload[8 : 8 + _MAX_SAID_BYTES].decode("ascii", "backslashreplace")
        state.end_reason = f"GOAWAY {h2.name_of_code(int.from_bytes(payload[4:8], 'big'))} {said}".rstrip()
        # The server has not begun those above the one that it names (RFC 9113, 6.8); those up to it go on.
        for stream in [each for each in state.streams.values() if not state.is_server and each.id > last_stream_id]:
            state.forget(stream).on_reset()

    def _on_window_update(self, flags: int, stream_id: int, payload: bytes) -> None:
        state = self._state
        increment = h2.read_word(payload, "WINDOW_UPDATE") & h2.MAX_WINDOW_BYTES
        if increment == 0:  # an error by RFC 9113, 6.9
            raise Http2Error("a WINDOW_UPDATE of 0")
        if stream_id == 0:
            was_wanted = bool(state.flow.blocked)
            state.flow.widen(increment)
            self._sender.resume_blocked(_RESUMED_AT_ONCE)
        elif (stream := state.streams.get(stream_id)) is not None:
            was_wanted = bool(stream.pending)
            state.flow.widen_stream(stream, increment)
            self._sender.resume(stream)
        else:
            state.refuse_idle(stream_id)
            state.nuisance.count(LATE)
            return
        if not was_wanted:  # many small updates that nothing waits for are a known flood
            state.nuisance.count()

    def _on_push_promise(self, flags: int, stream_id: int, payload: bytes) -> None:
        raise Http2Error("a PUSH_PROMISE, which was not allowed")

    def _on_nothing(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._state.nuisance.count()

    def _receive_whole(self, stream_id: int, call: WholeCall) -> None:
        """Handle a call of two frames: answer a known one without creating a stream, if nothing prevents
        that."""
        block, data = call
        state = self._state
        flow = state.flow
        # Answered without a stream only where a stream would have changed nothing else: order, windows, HPACK's table, and
        # our own first block, which has an update of the table's size before it.
        is_stateless = self._is_stateless
        fits = flow.has_window_for_whole and len(data) <= flow.receive_window
        asks = self._answer_verbatim if is_stateless and fits and self._is_next(stream_id) else None
        if asks is not None and (answer := asks(call)) is not None:
            state.last_peer_stream = stream_id
            flow.received(None, len(data))
            self._sender.send_whole(stream_id, answer)
            return
        self._on_block(h2.END_HEADERS, stream_id, block, whole=call if is_stateless else None)
        self._on_data(h2.END_STREAM, stream_id, data)

    def _has_refused(self, stream_id: int, block: bytes) -> bool:
        """Refuse a call of which the head alone has come without creating a stream; False: it has to be parsed."""
        if self._refuse_head is None or not self._is_stateless or not self._is_next(stream_id):
            return False
        trailers = self._refuse_head(block)
        if trailers is None:
            return False
        self._state.last_peer_stream = stream_id
        self._sender.send_refusal(stream_id, trailers)
        return True

    @property
    def _is_stateless(self) -> bool:
        """Whether header blocks of either end mean the same on any connection, and calls are still accepted."""
        return self._decoder.is_stateless and not self._state.is_leaving and self._sender.has_sent_headers

    def _is_next(self, stream_id: int) -> bool:
        """Whether a stream may be opened by this id."""
        state = self._state
        return stream_id > state.last_peer_stream and stream_id % 2 == 1 and len(state.streams) < state.limits.max_streams


def _require_connection(stream_id: int, what: str) -> None:
    if stream_id:
        raise Http2Error(f"a {what} frame for a stream; it is for the connection")


_HANDLERS: Mapping[int, Callable[[Http2Receiver, int, int, Any], None]] = {
    h2.DATA: Http2Receiver._on_data,
    h2.HEADERS: Http2Receiver._on_headers,
    h2.PRIORITY: Http2Receiver._on_nothing,
    h2.RST_STREAM: Http2Receiver._on_rst_stream,
    h2.SETTINGS: Http2Receiver._on_settings,
    h2.PUSH_PROMISE: Http2Receiver._on_push_promise,
    h2.PING: Http2Receiver._on_ping,
    h2.GOAWAY: Http2Receiver._on_goaway,
    h2.WINDOW_UPDATE: Http2Receiver._on_window_update,
    h2.CONTINUATION: Http2Receiver._on_continuation,
}
"""Handler by frame type, called with flags, stream id and payload; frames of unknown types are ignored (RFC
9113, 5.5)."""
