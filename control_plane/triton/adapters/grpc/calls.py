"""Calls in flight on an HTTP/2 connection to Triton: unary ones and streams. `triton/adapters/grpc/client` opens them, and owns
the connections.
"""

from __future__ import annotations

import asyncio
from collections import deque
from math import inf
from typing import Protocol

from control_plane.core.errors import PayloadTooLarge
from control_plane.core.infer_call import SendFailure
from control_plane.protocols.grpc import GrpcAnswer, GrpcStatus, MessageFrame, MessageReader, answer_of, status_answer
from control_plane.protocols.http2.connection import Http2Connection
from control_plane.protocols.http2.frames import Code
from control_plane.protocols.http2.headers import Fields
from control_plane.protocols.http2.stream import Stream
from control_plane.triton.ports import CANCEL_AFTER_S, Slot

_BROKE_OFF = "Triton closed the connection before it answered"

_MAX_QUEUED_ANSWERS = 16
_MAX_QUEUED_BYTES = 4 * 2**20
"""Most messages and bytes of a stream that its reader has not taken; beyond that flow control holds Triton
back.
"""


class CallConnection(Protocol):
    """Port of a call to its connection."""

    state: Http2Connection
    max_answer_bytes: int
    loop: asyncio.AbstractEventLoop

    def send_data(self, stream: Stream, frame: MessageFrame, *, ends: bool = False) -> None: ...

    def consumed(self, stream: Stream, count: int) -> None: ...

    def cancel(self, stream: Stream) -> None: ...


class Exchange:
    """Call on an HTTP/2 stream; the base class of unary and streaming calls, and a `StreamListener`."""

    __slots__ = ("connection", "deadline", "has_ended", "headers", "is_sent", "stream")

    stream: Stream

    def __init__(self, connection: CallConnection, deadline: float = inf) -> None:
        self.connection = connection
        self.deadline = deadline
        """When `expire` is called, in the loop's time."""
        self.is_sent = True
        """False only where the connection ended before the call was written to it."""
        self.has_ended = False
        self.headers: Fields = ()

    def _finish(self, trailers: Fields) -> None:
        raise NotImplementedError

    def on_headers(self, fields: Fields, *, ends: bool) -> None:
        if ends:
            self._finish(fields)
        else:
            self.headers = fields

    def on_data(self, data: bytes | memoryview, *, ends: bool) -> None:
        raise NotImplementedError

    def on_reset(self) -> None:
        self.headers = ()  # the status that follows is a trailers-only response
        self._finish(status_answer(GrpcStatus.UNAVAILABLE, self._broke_off()).trailers)

    def _broke_off(self) -> str:
        """Why the call has ended without an answer, with Triton's own words for it where it has some."""
        reason = self.connection.state.end_reason
        return f"{_BROKE_OFF} ({reason})" if reason else _BROKE_OFF

    def on_drained(self) -> None: ...

    def expire(self) -> None:
        """The deadline has passed."""
        self.deadline = inf


class UnaryCall(Exchange):
    """Unary call in flight."""

    __slots__ = ("_body", "_most_bytes", "_room_bytes", "_slot", "answer")

    def __init__(self, connection: CallConnection, loop: asyncio.AbstractEventLoop, deadline: float, *, most_bytes: int = 0) -> None:
        """`most_bytes` bounds the answer, where what is asked for is to have a bound of its own."""
        super().__init__(connection, deadline)
        self.answer: asyncio.Future[GrpcAnswer] = loop.create_future()
        self._body: list[bytes | memoryview] = []
        self._most_bytes = most_bytes
        self._room_bytes = most_bytes or connection.max_answer_bytes
        self._slot: Slot | None = None

    def on_data(self, data: bytes | memoryview, *, ends: bool) -> None:
        if not self.answer.done():
            self._body.append(data)
            self._room_bytes -= len(data)
        self.connection.state.consumed(self.stream, len(data))
        if ends:
            self._finish(())
        elif self._room_bytes < 0:
            self._refuse()

    def _refuse(self) -> None:
        """End a call whose answer is longer than it may be."""
        self._body = []
        if not self.answer.done():
            text = f"the answer has more than {self._most_bytes or self.connection.max_answer_bytes} bytes"
            if self._most_bytes:
                self.answer.set_result(status_answer(GrpcStatus.RESOURCE_EXHAUSTED, f"{text} (TIDEGATE_MAX_BODY_BYTES)"))
            else:
                self.answer.set_result(status_answer(GrpcStatus.UNAVAILABLE, text, loss=SendFailure.CONNECTION_LOST))
        self.cancel()

    def keep(self, slot: Slot) -> None:
        """Keep the slot of a call whose caller has left until it has ended or is cancelled."""
        slot.keep()
        self._slot = slot

    def cancel(self, slot_for_s: float = 0.0) -> None:
        """Cancel the call at Triton, unless it has ended by itself; its slot is kept for so long all the same, as
        Triton does not say whether the model has heeded it.
        """
        if self.has_ended:
            return
        slot, self._slot = self._slot, None
        self.connection.cancel(self.stream)
        self._end()
        if slot is not None:
            self.connection.loop.call_later(slot_for_s, slot.let_go)

    def _end(self) -> None:
        self.has_ended = True
        if self._slot is not None:
            self._slot.let_go()
            self._slot = None

    def expire(self) -> None:
        super().expire()
        self._body = []
        if not self.answer.done():
            self.answer.set_result(status_answer(GrpcStatus.DEADLINE_EXCEEDED, "Deadline Exceeded", loss=SendFailure.TIMED_OUT))

    def on_reset(self) -> None:
        self._end()
        if not self.answer.done():
            loss = SendFailure.CONNECTION_LOST if self.is_sent else SendFailure.NOT_SENT
            self.answer.set_result(status_answer(GrpcStatus.UNAVAILABLE, self._broke_off(), loss=loss))

    def _finish(self, trailers: Fields) -> None:
        self._end()
        if not self.answer.done():
            self.answer.set_result(answer_of(self.headers, tuple(self._body) if self.headers else (), trailers))


class TritonStream(Exchange):
    """Streaming call in flight; implements `triton/ports.GrpcStream`."""

    def __init__(self, connection: CallConnection) -> None:
        super().__init__(connection)
        self._reader = MessageReader(connection.max_answer_bytes)
        self._frames: deque[MessageFrame] = deque()
        self._unconsumed = 0
        self._is_half_closed = False
        self._is_abandoned = False
        self._changed = asyncio.Event()
        self._drained = asyncio.Event()
        self.trailers: Fields = ()
        self.heard_s = -inf
        self.is_broken_off = False

    async def send(self, frame: MessageFrame) -> None:
        """Send one message; return when Triton's flow-control window has taken it."""
        if self.has_ended:
            return
        self._drained.clear()
        self.connection.send_data(self.stream, frame)
        if self.stream.pending:
            await self._drained.wait()

    def half_close(self) -> None:
        """Tell Triton that no more messages follow."""
        if not self.has_ended and not self._is_half_closed:
            self._is_half_closed = True
            self.connection.send_data(self.stream, b"", ends=True)

    async def receive(self) -> MessageFrame | None:
        """Return the frame of the next message; None at the end, when `trailers` has the status."""
        while not self._frames:
            if self.has_ended or self._is_abandoned:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self.take()

    def take(self) -> MessageFrame | None:
        """Return the frame of the next message if it has come already; else None."""
        if not self._frames:
            return None
        frame = self._frames.popleft()
        self._give_room()
        return frame

    def cancel(self) -> None:
        """Cancel the call: nothing more is received. It is half-closed at once and reset a moment later,
        unless Triton ends it.
        """
        if not self.has_ended and not self._is_abandoned:
            self._is_abandoned = True
            self._frames.clear()
            self.half_close()
            self._give_room()
            self._changed.set()
            self._drained.set()
            asyncio.get_running_loop().call_later(CANCEL_AFTER_S, self._cancel_now)

    def _cancel_now(self) -> None:
        if not self.has_ended:
            self._finish(())
            self.connection.cancel(self.stream)

    def on_data(self, data: bytes | memoryview, *, ends: bool) -> None:
        if self._is_abandoned:
            self.connection.consumed(self.stream, len(data))
            if ends:
                self._finish(())
            return
        self._unconsumed += len(data)
        self.heard_s = self.connection.loop.time()
        try:
            self._frames += self._reader.feed(data)
        except PayloadTooLarge as exc:
            self.connection.state.reset(self.stream, Code.CANCEL)
            self._finish(status_answer(GrpcStatus.INTERNAL, f"Triton's answer cannot be read: {exc}").trailers)
            return
        self._give_room()
        self._changed.set()
        if ends:
            self._finish(())

    def _give_room(self) -> None:
        """Open the flow-control window again while few messages wait; what a slow reader does not take stays
        in Triton's memory.
        """
        if self._unconsumed and len(self._frames) <= _MAX_QUEUED_ANSWERS and sum(map(len, self._frames)) <= _MAX_QUEUED_BYTES:
            self.connection.consumed(self.stream, self._unconsumed)
            self._unconsumed = 0

    def on_reset(self) -> None:
        self.is_broken_off = True
        super().on_reset()

    def on_drained(self) -> None:
        self._drained.set()

    def _finish(self, trailers: Fields) -> None:
        self.has_ended, self.trailers = True, trailers
        self._changed.set()
        self._drained.set()
