"""Sending half of one HTTP/2 connection: writes header blocks and data as frames, within the peer's
flow-control windows.

Source: RFC 9113, 5.2. Used by `protocols/http2/connection`, and by `protocols/http2/receiving`, which reads the
peer's WINDOW_UPDATEs.
"""

from __future__ import annotations

import itertools
from collections import deque

from control_plane.protocols.http2 import frames as h2
from control_plane.protocols.http2.frames import Code
from control_plane.protocols.http2.headers import NO_TABLE
from control_plane.protocols.http2.state import ConnectionState
from control_plane.protocols.http2.stream import Stream, WholeAnswer


class Http2Sender:
    """Writer of one connection's frames, as far as flow control allows; they are appended to the state's
    `output`."""

    __slots__ = ("_block_prefix", "_flow", "_state")

    def __init__(self, state: ConnectionState) -> None:
        self._state = state
        self._flow = state.flow
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
        flow, size = self._flow, len(data)
        if not stream.pending and size <= flow.max_send_frame and size <= stream.send_window and size <= flow.send_window:
            self._write_data(stream, data if isinstance(data, bytes) else memoryview(data), ends=ends)
            return
        stream.pending = stream.pending or deque()
        stream.pending.append((memoryview(data), ends))
        self._send_pending(stream)

    @property
    def has_sent_headers(self) -> bool:
        """Whether the first header block, with its table size update, has been sent; later blocks are
        stateless."""
        return not self._block_prefix

    def send_whole(self, stream_id: int, answer: WholeAnswer) -> None:
        """Send the answer to a call for which no stream was created; `FlowControl.has_window_for_whole` must
        hold."""
        state = self._state
        head, data, trailers = answer
        state.flow.send_window -= len(data)
        state.count_answer(has_data=bool(head))
        if head:
            state.output += (h2.frame_head(h2.HEADERS, h2.END_HEADERS, stream_id, len(head)), head)
            state.output += (h2.frame_head(h2.DATA, 0, stream_id, len(data)), data)
        state.output += (h2.frame_head(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, stream_id, len(trailers)), trailers)

    def send_refusal(self, stream_id: int, trailers: bytes) -> None:
        """Refuse a call for which no stream was created, and of which more may be on its way."""
        self.send_whole(stream_id, (b"", b"", trailers))
        self._state.output.append(h2.rst_stream(stream_id, Code.NO_ERROR))  # as where a stream ends early
        self._state.nuisance.expect_late()

    def resume(self, stream: Stream) -> None:
        """Send what of a stream's data has waited for a window, as far as the windows allow."""
        if stream.pending:
            self._send_pending(stream)

    def resume_blocked(self, most: int) -> None:
        """Resume at most `most` streams that wait for the connection's window.

        Round robin, one stream's window each, since otherwise one long answer would keep all others waiting.
        """
        flow = self._flow
        for stream in tuple(itertools.islice(flow.blocked.values(), most)):
            if flow.send_window <= 0:
                return
            del flow.blocked[stream.id]
            self._send_pending(stream)

    def announce_drain(self) -> None:
        """Begin a graceful shutdown: ask a client for no new streams, and find out when it has read that.

        Until then the client may still open streams, so `leave` follows when the ping is acknowledged (RFC
        9113, 6.8).
        """
        self._state.output += (h2.goaway(h2.MAX_STREAM_ID, Code.NO_ERROR), h2.ping(h2.DRAIN_PING))

    def leave(self, code: Code = Code.NO_ERROR, reason: str = "") -> None:
        """Send the last GOAWAY: new streams are refused, open ones may complete."""
        state = self._state
        if not state.is_leaving:
            state.is_leaving = True
            state.output.append(h2.goaway(state.last_peer_stream, code, reason))

    def _send_pending(self, stream: Stream) -> None:
        flow = self._flow
        while stream.pending:
            data, ends = stream.pending[0]
            if isinstance(data, bytes):
                stream.pending.popleft()
                self._write_headers(stream, data, ends=ends)
                continue
            size = min(len(data), flow.room_for(stream))
            if size == 0 < len(data):
                if stream.send_window > 0:  # else it waits for its own window, and `resume` is called when that opens
                    flow.blocked[stream.id] = stream
                return
            if size == len(data):
                stream.pending.popleft()
            else:
                stream.pending[0] = (data[size:], ends)
            self._write_data(stream, data[:size], ends=ends and size == len(data))
        flow.blocked.pop(stream.id, None)
        stream.listener.on_drained()

    def _write_headers(self, stream: Stream, block: bytes, *, ends: bool) -> None:
        state = self._state
        # Once, before the connection's first block (RFC 7541, 4.2).
        if self._block_prefix:
            block, self._block_prefix = self._block_prefix + block, b""
        flags = h2.END_STREAM if ends else 0
        kind, rest, most = h2.HEADERS, block, self._flow.max_send_frame
        while len(rest) > most:  # END_STREAM goes with HEADERS, END_HEADERS with the last CONTINUATION (RFC 9113, 6.2, 6.10)
            state.output += (h2.frame_head(kind, flags, stream.id, most), rest[:most])
            kind, flags, rest = h2.CONTINUATION, 0, rest[most:]
        state.output += (h2.frame_head(kind, flags | h2.END_HEADERS, stream.id, len(rest)), rest)
        if ends:
            state.local_ends(stream)

    def _write_data(self, stream: Stream, data: bytes | memoryview, *, ends: bool) -> None:
        state, size, most = self._state, len(data), self._flow.max_send_frame
        stream.send_window -= size
        self._flow.send_window -= size
        stream.has_sent_data = True
        if size > most:
            data = self._write_full_frames(stream, data, most)
            size = len(data)
        if state.nuisance.level:
            state.nuisance.drain_for_frame()
        state.output += (h2.frame_head(h2.DATA, h2.END_STREAM if ends else 0, stream.id, size), data)
        if ends:
            state.local_ends(stream)

    def _write_full_frames(self, stream: Stream, data: bytes | memoryview, most: int) -> memoryview:
        """Write data that is longer than a frame as frames of the length `most`, and return the rest, which is not empty."""
        state, view = self._state, memoryview(data)
        head, end = h2.frame_head(h2.DATA, 0, stream.id, most), (len(view) - 1) // most * most
        for at in range(0, end, most):
            state.output += (head, view[at : at + most])
            if state.nuisance.level:
                state.nuisance.drain_for_frame()
        return view[end:]
