"""Messages of one streaming gRPC call in both directions, as its handler uses them (`frontends/kserve/grpc_stream`).

`frontends/grpc/call` splits the received bytes into messages and puts them here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from control_plane.protocols.grpc import GrpcAnswer, MessageFrame
from control_plane.protocols.http2.headers import Fields
from control_plane.protocols.http2.stream import Stream

_MAX_QUEUED_MESSAGES = 4
_MAX_QUEUED_BYTES = 2**20
"""Messages of a streaming call, and their bytes, that may wait for its handler before the client's window
stays closed."""


class MessageConnection(Protocol):
    """Port of a call's messages to its connection."""

    def answer(self, stream: Stream, answer: GrpcAnswer) -> None: ...

    def send(self, stream: Stream, frame: MessageFrame, headers: Fields | None) -> None: ...

    def consumed(self, stream: Stream, count: int) -> None: ...

    async def writable(self) -> None: ...


_MAX_HELD_BYTES = 64 * 2**20
"""Bytes of messages that a handler has received and is not done with, above which it receives no more: one stream must not
take the memory of all bodies."""


class MessageStream:
    """Bidirectional message stream of a streaming call, with back-pressure both ways; its handler's view of
    the call."""

    def __init__(
        self, connection: MessageConnection, stream: Stream, read_backlog: Callable[[], bool], forget: Callable[[int], None]
    ) -> None:
        """`read_backlog` splits more messages off data that has arrived and passes them to `arrived`; False if
        there are none."""
        self._connection = connection
        self._stream = stream
        self._read_backlog = read_backlog
        self._forget = forget
        self._held_bytes = 0
        """Bytes of the received messages that are not forgotten yet."""
        self._frames: deque[MessageFrame] = deque()
        self._changed = asyncio.Event()
        self._has_ended = False
        self._has_answered = False
        self._unconsumed = 0
        self._is_rested = True
        """Whether the loop has had a turn since the last message was received."""
        self.drained = asyncio.Event()
        self.is_idle: Callable[[], bool] | None = None
        """Set by the handler: whether each message that it received has been answered."""
        self._received = self.sent = 0
        """Messages so far, either way."""
        self._received_when_idle = -1

    async def receive(self) -> MessageFrame | None:
        """The client's next message; None when the client has ended its side.

        Raises ControlPlaneError: it is invalid.

        Messages that arrived together are returned a turn of the loop apart, so that other clients get their
        share.
        """
        while not self._frames or self._held_bytes > _MAX_HELD_BYTES:
            if not self._frames:
                if self._read_backlog():
                    continue
                if self._has_ended:
                    return None
            self._changed.clear()
            await self._changed.wait()
            self._is_rested = True
        if not self._is_rested:
            await asyncio.sleep(0)
        self._is_rested = False
        frame = self._frames.popleft()
        self._received += 1
        self._held_bytes += len(frame)
        self._give_room()
        return frame

    def forget(self, size_bytes: int) -> None:
        """Give back the memory of a received message of so many bytes; called once for each, when nobody needs it any more."""
        self._held_bytes -= size_bytes
        self._forget(size_bytes)
        self._changed.set()

    def has_been_idle(self) -> bool:
        """Whether each message has been answered now, as at the last call, and none has come in between."""
        is_idle = self.is_idle is not None and self.is_idle() and not self._frames and not self._stream.pending
        before, self._received_when_idle = self._received_when_idle, self._received if is_idle else -1
        return is_idle and before == self._received

    async def send(self, frame: MessageFrame, headers: Fields = ()) -> None:
        """Send one message; return when the client's window is open for the next.

        `headers` go with the first message.
        """
        self.drained.clear()
        self.sent += 1
        self._connection.send(self._stream, frame, None if self._has_answered else headers)
        self._has_answered = True
        if self._stream.pending:
            await self.drained.wait()
        await self._connection.writable()

    @property
    def is_holding_back(self) -> bool:
        """Whether the client's window may be closed because the handler has not received what arrived."""
        return self._unconsumed > 0

    def finish(self, answer: GrpcAnswer) -> None:
        """End the call with a status; after a message has been sent, with trailers only."""
        if self._has_answered:
            answer = answer.ending()
        self._connection.answer(self._stream, answer)

    def arrived(self, frames: list[MessageFrame] | tuple[()], received: int, *, ends: bool) -> None:
        """Called by `Call` with complete messages, and the number of bytes that arrived."""
        self._frames += frames
        self._unconsumed += received
        self._has_ended = ends
        if frames or ends:
            self._changed.set()
        if not ends:
            self._give_room()

    def _give_room(self) -> None:
        if self._unconsumed and len(self._frames) <= _MAX_QUEUED_MESSAGES and sum(map(len, self._frames)) <= _MAX_QUEUED_BYTES:
            self._connection.consumed(self._stream, self._unconsumed)
            self._unconsumed = 0
