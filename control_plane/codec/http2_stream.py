"""One stream of an HTTP/2 connection: its windows, and what waits for them."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from control_plane.codec.http2_headers import Fields


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


class Stream:
    """Kept by `Http2Connection`; its users hold it as a handle."""

    __slots__ = (
        "held_bytes",
        "id",
        "listener",
        "local_is_closed",
        "pending",
        "receive_window",
        "remote_is_closed",
        "send_window",
        "unreturned",
    )

    def __init__(self, stream_id: int, *, send_window: int, receive_window: int) -> None:
        self.id = stream_id
        self.listener: StreamListener
        self.send_window = send_window
        self.receive_window = receive_window
        self.held_bytes = 0
        """Received and not yet consumed: what the peer's window lacks until it is."""
        self.unreturned = 0
        """Consumed, and not yet worth a WINDOW_UPDATE."""
        self.pending: deque[tuple[memoryview | bytes, bool]] = deque()
        """What the peer's window has not let through: data and whether it ends the stream; `bytes` are a header block."""
        self.local_is_closed = False
        self.remote_is_closed = False
