"""Sending half of one HTTP/2 connection: writes header blocks and data as frames, within the peer's
flow-control windows.

Source: RFC 9113, 5.2. Used by `protocols/http2/connection`, which reads the peer's WINDOW_UPDATEs.
"""

from __future__ import annotations

import itertools

from control_plane.protocols.http2 import frames as h2
from control_plane.protocols.http2.frames import Code, Http2Error
from control_plane.protocols.http2.headers import NO_TABLE
from control_plane.protocols.http2.state import ConnectionState
from control_plane.protocols.http2.stream import MAX_WHOLE_BYTES, Stream, WholeAnswer


class Http2Sender:
    """Flow-controlled writer of one connection's streams; frames are appended to the state's `output`."""

    def __init__(self, state: ConnectionState) -> None:
        self._state = state
        self._block_prefix = NO_TABLE

    def send_headers(self, stream: Stream, block: bytes, *, ends: bool = False) -> None:
        """Send a header block (`protocols/http2/headers.encode_fields`), after data that waits for a
        window."""
        if stream.pending:
            stream.pending.append((block, ends))
        else:
            self._write_headers(stream, block, ends=ends)

    def send_data(self, stream: Stream, data: bytes | bytearray | memoryview, *, ends: bool = False) -> None:
        """Send as much as the windows allow; the rest follows as they open, then the listener's `on_drained`
        is called."""
        state, size = self._state, len(data)
        if not stream.pending and size <= state.max_send_frame and size <= stream.send_window and size <= state.send_window:
            self._write_data(stream, data if isinstance(data, bytes) else memoryview(data), ends=ends)
            return
        stream.pending.append((memoryview(data), ends))
        self._send_pending(stream)

    @property
    def has_sent_headers(self) -> bool:
        """Whether the first header block, with its table size update, has been sent; later blocks are
        stateless."""
        return not self._block_prefix

    @property
    def has_window_for_whole(self) -> bool:
        """Whether a `WholeAnswer` of any size fits into a new stream's window and the connection's."""
        state = self._state
        return min(state.send_window, state.initial_send_window, state.max_send_frame) >= MAX_WHOLE_BYTES

    def send_whole(self, stream_id: int, answer: WholeAnswer) -> None:
        """Send the answer to a call for which no stream was created; `has_window_for_whole` must hold."""
        state = self._state
        head, data, trailers = answer
        state.send_window -= len(data)
        state.count_answer(has_data=bool(head))
        if head:
            state.output += (h2.frame_head(h2.HEADERS, h2.END_HEADERS, stream_id, len(head)), head)
            state.output += (h2.frame_head(h2.DATA, 0, stream_id, len(data)), data)
        state.output += (h2.frame_head(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, stream_id, len(trailers)), trailers)

    def set_initial_window(self, value: int) -> None:
        """Apply the peer's INITIAL_WINDOW_SIZE, which shifts the windows of all open streams too.

        Raises Http2Error.
        """
        state = self._state
        if value > h2.MAX_WINDOW_BYTES:
            raise Http2Error(f"INITIAL_WINDOW_SIZE {value} is out of range", Code.FLOW_CONTROL_ERROR)
        for stream in state.streams.values():
            stream.send_window += value - state.initial_send_window
            if stream.send_window > h2.MAX_WINDOW_BYTES:
                raise Http2Error("a stream's window overflows", Code.FLOW_CONTROL_ERROR)
            if stream.pending and stream.send_window > 0:
                state.blocked[stream.id] = stream
        state.initial_send_window = value

    def widen(self, increment: int) -> bool:
        """Widen the connection's window; returns whether any stream waited for that. Raises Http2Error."""
        state = self._state
        state.send_window += increment
        if state.send_window > h2.MAX_WINDOW_BYTES:
            raise Http2Error("the connection's window overflows", Code.FLOW_CONTROL_ERROR)
        return bool(state.blocked)

    def widen_stream(self, stream: Stream, increment: int) -> bool:
        """Widen a stream's window and send what waited for it; returns whether anything did.

        Raises Http2Error.
        """
        stream.send_window += increment
        if stream.send_window > h2.MAX_WINDOW_BYTES:
            raise Http2Error("the stream's window overflows", Code.FLOW_CONTROL_ERROR)
        if not stream.pending:
            return False
        self._send_pending(stream)
        return True

    @property
    def can_resume(self) -> bool:
        """Whether streams wait that could be resumed now."""
        return bool(self._state.blocked) and self._state.send_window > 0

    def go_on(self, most: int) -> None:
        """Resume at most `most` streams that wait for the connection's window.

        Round robin, one stream's window each, since otherwise one long answer would keep all others waiting.
        """
        state = self._state
        for stream in tuple(itertools.islice(state.blocked.values(), most)):
            if state.send_window <= 0:
                return
            del state.blocked[stream.id]
            self._send_pending(stream)

    def _send_pending(self, stream: Stream) -> None:
        state = self._state
        while stream.pending:
            data, ends = stream.pending[0]
            if isinstance(data, bytes):
                stream.pending.popleft()
                self._write_headers(stream, data, ends=ends)
                continue
            # A window may be negative after the peer has lowered INITIAL_WINDOW_SIZE (RFC 9113, 6.9.2).
            room = max(0, min(state.max_send_frame, stream.send_window, state.send_window))
            size = min(len(data), room)
            if size == 0 < len(data):
                if stream.send_window > 0:  # else it waits for its own window, and `widen_stream` resumes it
                    state.blocked[stream.id] = stream
                return
            if size == len(data):
                stream.pending.popleft()
            else:
                stream.pending[0] = (data[size:], ends)
            self._write_data(stream, data[:size], ends=ends and size == len(data))
        state.blocked.pop(stream.id, None)
        stream.listener.on_drained()

    def _write_headers(self, stream: Stream, block: bytes, *, ends: bool) -> None:
        state = self._state
        if self._block_prefix:
            block, self._block_prefix = self._block_prefix + block, b""
        flags = h2.END_STREAM if ends else 0
        kind, rest, most = h2.HEADERS, block, state.max_send_frame
        while len(rest) > most:  # END_STREAM goes with HEADERS, END_HEADERS with the last CONTINUATION (RFC 9113, 6.2, 6.10)
            state.output += (h2.frame_head(kind, flags, stream.id, most), rest[:most])
            kind, flags, rest = h2.CONTINUATION, 0, rest[most:]
        state.output += (h2.frame_head(kind, flags | h2.END_HEADERS, stream.id, len(rest)), rest)
        if ends:
            state.local_ends(stream)

    def _write_data(self, stream: Stream, data: bytes | memoryview, *, ends: bool) -> None:
        state, size = self._state, len(data)
        stream.send_window -= size
        state.send_window -= size
        stream.has_sent_data = True
        if state.nuisance.level:
            state.nuisance.drain_for_frame()
        state.output += (h2.frame_head(h2.DATA, h2.END_STREAM if ends else 0, stream.id, size), data)
        if ends:
            state.local_ends(stream)
