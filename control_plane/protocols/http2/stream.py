"""One stream of an HTTP/2 connection: its windows and the data that waits for them; and the port for its
listener."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from control_plane.protocols.http2 import frames as h2
from control_plane.protocols.http2.headers import Fields


class StreamListener(Protocol):
    """Receiver of a stream's events; called from within `Http2Connection.receive`, so its methods must not
    raise."""

    def on_headers(self, fields: Fields, *, ends: bool) -> None:
        """A head or trailers have arrived; `ends`: the peer has ended its side of the stream."""

    def on_data(self, data: bytes | memoryview, *, ends: bool) -> None:
        """A part of the body has arrived; `Http2Connection.consumed` must return its bytes to the peer's
        window."""

    def on_reset(self) -> None:
        """The stream was ended early, by the peer or the end of the connection; no further event follows."""

    def on_drained(self) -> None:
        """All data given to `send_data` has been written to the connection's output."""


class _NullListener:
    """Null listener, of a stream that has ended."""

    def on_headers(self, fields: Fields, *, ends: bool) -> None: ...

    def on_data(self, data: bytes | memoryview, *, ends: bool) -> None: ...

    def on_reset(self) -> None: ...

    def on_drained(self) -> None: ...


NULL_LISTENER = _NullListener()


MAX_WHOLE_BYTES = 16_000
"""Largest message that a `WholeCall` or `WholeAnswer` may have: it fits into one frame of the default
size."""

WholeCall = tuple[bytes, bytes]
"""A small unary call: its header block and its data, which arrived in one frame each."""
WholeAnswer = tuple[bytes, bytes, bytes]
"""A small answer: header block, data, block of trailers; a refusal has trailers only. All blocks are
stateless."""


def whole_call(head: h2.Frame, data: h2.Frame) -> WholeCall | None:
    """The call that a HEADERS frame and the frame after it make up, if they are all of a small call; else
    None."""
    kind, flags, stream_id, payload = data
    # Exactly these flags: without padding, priority, a CONTINUATION or trailers.
    if head[1] != h2.END_HEADERS or kind != h2.DATA or flags != h2.END_STREAM or stream_id != head[2] or len(payload) > MAX_WHOLE_BYTES:
        return None
    return bytes(head[3]), bytes(payload)


class Stream:
    """State of one stream of an HTTP/2 connection; users of the connection hold it as an opaque handle."""

    __slots__ = (
        "block",
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
        """The connection's age (`Nuisance.age_ticks`) when the stream was opened."""
        self.has_sent_data = False
        self.listener: StreamListener
        self.send_window = send_window
        self.receive_window = receive_window
        self.held_bytes = 0
        """Bytes received and not yet consumed, which are missing in the peer's window."""
        self.unreturned = 0
        """Bytes consumed that have not been returned to the peer: too few yet for a WINDOW_UPDATE."""
        self.pending: deque[tuple[memoryview | bytes, bool]] | tuple[()] = ()
        """Data that waits for the windows, each with whether it ends the stream; `bytes` are a header block. Hardly
        any stream has some, so the queue is made when it is needed."""
        self.block: bytes | None = None
        """The header block that opened the stream, if it would mean the same on any connection."""
        self.whole: WholeCall | None = None
        """The whole call, if it arrived at once and would mean the same on any connection; a cache may use it
        as its key."""
        self.local_is_closed = False
        self.remote_is_closed = False
