"""One stream of an HTTP/2 connection: its windows, and what waits for them."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from control_plane.protocols.http2 import frames as h2
from control_plane.protocols.http2.headers import Fields


class StreamListener(Protocol):
    """Told what happens to a stream; called from within `Http2Connection.receive`, so it must not raise."""

    def on_headers(self, fields: Fields, *, ends: bool) -> None:
        """A request's or an answer's head, or trailers. `ends`: the peer sends nothing more."""

    def on_data(self, data: bytes | memoryview, *, ends: bool) -> None:
        """Some of the body; `Http2Connection.consumed` gives the peer room for more."""

    def on_reset(self) -> None:
        """The peer, or the end of the connection, ended the stream early; nothing follows."""

    def on_drained(self) -> None:
        """All that was given to the stream to send has been handed to the connection's output."""


class _Nobody:
    """The listener of a stream that is over."""

    def on_headers(self, fields: Fields, *, ends: bool) -> None: ...

    def on_data(self, data: bytes | memoryview, *, ends: bool) -> None: ...

    def on_reset(self) -> None: ...

    def on_drained(self) -> None: ...


NOBODY = _Nobody()


MAX_WHOLE_BYTES = 16_000
"""Of a call's message, or an answer's, that may travel as a whole: in a frame of the default size."""

WholeCall = tuple[bytes, bytes]
"""The header block of a call, and its data, in one frame each."""
WholeAnswer = tuple[bytes, bytes, bytes]
"""An answer's header block, its data, and the block of its trailers; a refusal is nothing but trailers. None depends on any table."""


def whole_call(head: h2.Frame, data: h2.Frame) -> WholeCall | None:
    """What a HEADERS frame and the one behind it are, if they are all of a small call."""
    kind, flags, stream_id, payload = data
    if head[1] != h2.END_HEADERS or kind != h2.DATA or flags != h2.END_STREAM or stream_id != head[2] or len(payload) > MAX_WHOLE_BYTES:
        return None
    return bytes(head[3]), bytes(payload)


class Stream:
    """Kept by `Http2Connection`; its users hold it as a handle."""

    __slots__ = (
        "born",
        "has_sent_data",
        "held_bytes",
        "id",
        "listener",
        "local_is_closed",
        "pending",
        "receive_window",
        "remote_is_closed",
        "send_window",
        "unreturned",
        "whole",
    )

    def __init__(self, stream_id: int, *, send_window: int, receive_window: int, born: int = 0) -> None:
        self.id = stream_id
        self.born = born
        """How many calms its connection had seen."""
        self.has_sent_data = False
        self.listener: StreamListener
        self.send_window = send_window
        self.receive_window = receive_window
        self.held_bytes = 0
        """Received and not yet consumed: what the peer's window lacks until it is."""
        self.unreturned = 0
        """Consumed, and not yet worth a WINDOW_UPDATE."""
        self.pending: deque[tuple[memoryview | bytes, bool]] = deque()
        """What the peer's window has not let through: data and whether it ends the stream; `bytes` are a header block."""
        self.whole: WholeCall | None = None
        """All that came, where it came at once and would mean the same on any connection."""
        self.local_is_closed = False
        self.remote_is_closed = False
