"""One gRPC call at the server: collects its messages, runs its handler in a task, and writes the answer.

`frontends/grpc/connection` creates a `Call` for each HTTP/2 stream; handlers come from the application
(`frontends/kserve/grpc`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Protocol

from control_plane.core.errors import ControlPlaneError, GatewayStopping, InvalidRequest, Overloaded, RequestTimeout
from control_plane.core.principal import ANONYMOUS, Principal
from control_plane.frontends.common.body_budget import UNCOUNTED_BYTES, BodyBudget
from control_plane.frontends.common.read_scheduler import WaitingRequest
from control_plane.frontends.grpc.arrivals import Arrivals
from control_plane.frontends.grpc.call_stalls import CallStalls
from control_plane.frontends.grpc.handler import GrpcHandler, failure
from control_plane.frontends.grpc.message_stream import MessageConnection, MessageStream
from control_plane.frontends.grpc.unparsed_answers import LateHead, UnparsedAnswers
from control_plane.host.memory.large_buffers import free_in_steps
from control_plane.protocols.grpc import GrpcHead, MessageFrame, MessageReader, read_head
from control_plane.protocols.http2.headers import Fields
from control_plane.protocols.http2.stream import Stream
from control_plane.triton.ports import GrpcCall

_MESSAGES_AT_ONCE = 16
"""Messages of a streaming call that are split off at a time; one HTTP/2 frame may hold 50,000."""

_UNCOUNTED_OF_CONNECTION = 64 * UNCOUNTED_BYTES
"""Bytes of the small messages on one connection that need not be counted while their calls have not ended on the client's
side: it may begin a thousand calls, and end none."""


class CallConnection(MessageConnection, Protocol):
    """Port of a call to its connection."""

    tasks: asyncio.TaskGroup
    budget: BodyBudget
    max_message_bytes: int
    body_timeout_s: float
    arrivals: Arrivals
    unparsed: UnparsedAnswers
    uncounted_bytes: int
    """Bytes of messages of which its calls have noted that they are not counted."""

    @property
    def is_leaving(self) -> bool:
        """Whether the client has been told that the connection is drained."""

    def handler_for(self, head: GrpcHead) -> tuple[GrpcHandler, Principal]:
        """The handler and the caller; raises a ControlPlaneError for an unknown method or a caller without the right."""

    def begin(self, call: WaitingRequest) -> bool:
        """Begin the work on a call whose message is whole, now or in one of the next turns of the loop; returns whether it has begun."""

    def has_begun(self) -> None:
        """Note that a call has begun which had to wait."""

    def reset(self, stream: Stream) -> None:
        """End a stream without an answer, because the client opens no window for one."""


class Call:
    """State machine of one call, as the `StreamListener` of its HTTP/2 stream."""

    __slots__ = (
        "_came_s",
        "_connection",
        "_frame",
        "_granted_bytes",
        "_handler",
        "_has_ended",
        "_head",
        "_is_late",
        "_is_whole",
        "_messages",
        "_partial_is_counted",
        "_principal",
        "_reader",
        "_received_bytes",
        "_stalls",
        "_stream",
        "_task",
        "_uncounted_bytes",
        "_waits_to_begin",
    )

    def __init__(self, connection: CallConnection, stream: Stream) -> None:
        self._connection = connection
        self._stream = stream
        self._reader = MessageReader(connection.max_message_bytes)
        self._head: GrpcHead | None = None
        self._handler: GrpcHandler | None = None
        self._principal = ANONYMOUS
        self._messages: MessageStream | None = None
        self._frame: MessageFrame | None = None
        self._task: asyncio.Task[None] | None = None
        self._came_s: float | None = None
        self._granted_bytes = self._uncounted_bytes = 0
        self._waits_to_begin = self._is_whole = self._is_late = self._partial_is_counted = False
        self._has_ended = False
        """Whether the client has ended its side of the stream."""
        self._received_bytes = 0
        self._stalls: CallStalls | None = None
        """Made by the first `check`: most calls end before it."""

    def check(self, now_s: float) -> None:
        """End a stalled call (`call_stalls`), and during a drain a streaming call in which nothing happens; called about once a
        second."""
        self._is_late = self._is_late or not self._is_whole or self._frame is not None
        if self._stalls is None:
            self._stalls = CallStalls()
        patience_s, partial_bytes = self._connection.body_timeout_s, self._reader.partial_bytes
        stalled_s = self._stalls.stalled_sending_s(
            now_s, received_bytes=self._received_bytes, message_bytes=partial_bytes, may_send=self._client_may_send()
        )
        if stalled_s > patience_s:
            self.refuse(RequestTimeout(f"the rest of the message did not come within {patience_s:g} s"))
        if self._connection.is_leaving and self._messages is not None and self._messages.has_been_idle():
            self.refuse(GatewayStopping())
        unsent_bytes = sum(len(piece) for piece, _ in self._stream.pending)
        sent_messages = 0 if self._messages is None else self._messages.sent
        if self._stalls.stalled_reading_s(now_s, unsent_bytes=unsent_bytes, sent_messages=sent_messages) > patience_s:
            self._connection.reset(self._stream)
            self.on_reset()

    def _client_may_send(self) -> bool:
        """Whether the client could send on but does not; false while we are busy or keep its window closed."""
        if self._handler is None:
            return False
        if self._messages is None:
            return self._task is None and not self._waits_to_begin
        return not self._reader.is_between_messages and not self._messages.is_holding_back

    # StreamListener

    def on_headers(self, fields: Fields, *, ends: bool) -> None:
        if self._head is not None:  # request trailers, which gRPC does not use: they only end the client's side
            self.on_data(b"", ends=ends)
            return
        try:
            self._head = read_head(fields)
            self._handler, self._principal = self._connection.handler_for(self._head)
        except ControlPlaneError as exc:
            self.refuse(exc)
            return
        self._came_s = self._connection.arrivals.came_s
        if self._came_s is not None and self._refused_as_late(self._came_s):
            return
        if self._handler.max_bytes is not None:
            most = min(self._handler.max_bytes, self._connection.max_message_bytes)
            self._reader = MessageReader(most, of=" of this method")
        if self._handler.stream is not None:
            # Begun before its first message: a caller need not send one to hear that it may not, or that no server is up.
            self._messages = MessageStream(self._connection, self._stream, self.read_backlog, self._forget_message)
            self._start(self._answer())
        if ends:
            self.on_data(b"", ends=True)

    def _refused_as_late(self, came_s: float) -> bool:
        """Refuse the call if it has waited in its connection's backlog for most of its time; returns whether it was refused."""
        head, handler = self._head, self._handler
        if head is None or head.timeout_s is None or handler is None or handler.late is None:
            return False
        late_head = LateHead(self._principal, head.timeout_s, handler.late)
        error = late_head.error(asyncio.get_running_loop().time() - came_s)
        if error is None:
            return False
        self.refuse(error)
        if self._stream.block is not None:
            self._connection.unparsed.remember(self._stream.block, late_head)
        return True

    def on_data(self, data: bytes | memoryview, *, ends: bool) -> None:
        if self._handler is None:
            self._connection.consumed(self._stream, len(data))  # the call was refused, and the rest of it is dropped
            return
        self._received_bytes += len(data)
        self._has_ended = ends
        try:
            self._arrived(self._reader.feed(data, _MESSAGES_AT_ONCE) if data else (), len(data))
        except ControlPlaneError as exc:
            self.refuse(exc)

    def read_backlog(self) -> bool:
        """Split more messages off data that has arrived; False if no data is left.

        Raises ControlPlaneError.
        """
        if not self._reader.has_backlog:
            return False
        self._arrived(self._reader.split_more(_MESSAGES_AT_ONCE), 0)
        return True

    def _arrived(self, frames: list[MessageFrame] | tuple[()], received: int) -> None:
        ends = self._has_ended and not self._reader.has_backlog
        if ends and not self._reader.is_between_messages:
            raise InvalidRequest("the call ended within a message")
        if self._messages is None:
            self._collect(frames, received, ends=ends)
        else:
            self._count_large(frames)
            self._messages.arrived(frames, received, ends=ends)

    def on_reset(self) -> None:
        if self._task is not None:
            self._task.cancel()
        # These form reference cycles (the task by its traceback), which would keep the message until a garbage collection.
        self._task = self._frame = self._messages = None
        self._release()

    def on_drained(self) -> None:
        if self._messages is not None:
            self._messages.drained.set()

    # Unary calls

    def _collect(self, frames: list[MessageFrame] | tuple[()], received: int, *, ends: bool) -> None:
        if frames:
            if self._frame is not None or len(frames) > 1:
                raise InvalidRequest("a unary call has one message, got more")
            self._frame = frames[0]
        if not ends:
            self._make_room(received)
            return
        # Everything is returned to the connection's window, which other calls share; the stream itself is finished.
        self._connection.consumed(self._stream, self._stream.held_bytes)
        if self._frame is None:
            raise InvalidRequest("a unary call has one message, got none")
        self._is_whole = True
        if self._came_s is not None and self._refused_as_late(self._came_s):  # it need not wait for its turn to begin
            return
        if self._task is not None and len(self._frame) <= UNCOUNTED_BYTES:  # it is whole, and needs no room any more
            self._task.cancel()
            self._task = None
        if self._task is None and not self._connection.begin(self):
            self._waits_to_begin = True
            if self._came_s is None:
                self._came_s = asyncio.get_running_loop().time()

    def begin(self) -> None:
        """See `read_scheduler.WaitingRequest`."""
        if self._waits_to_begin:
            self._waits_to_begin = False
            self._connection.has_begun()
        if self._uncounted_bytes:
            self._note_uncounted(0)  # from here on it counts where it waits (`admission/waiting_room`)
        if self._frame is None or self._handler is None:  # the client has left, or the call was refused
            return
        if self._came_s is None or not self._refused_as_late(self._came_s):
            self._start(self._answer())

    def _make_room(self, received: int) -> None:
        """Open the client's window; for a large message, and a small one where its connection has many, only when the budget
        has room for all of it."""
        self._came_s = None  # from here on the client takes its time
        if self._task is not None:  # it waits for room already, and opens the window then
            return
        wanted = self._reader.partial_bytes or len(self._frame or b"")
        if self._granted_bytes or self._may_stay_uncounted(wanted):
            self._connection.consumed(self._stream, received)
            return
        if self._handler is not None and self._handler.admit is not None:
            self._handler.admit(self._principal)
        if self._connection.budget.try_acquire(wanted):
            self._granted_bytes = wanted
            self._connection.consumed(self._stream, self._stream.held_bytes)
        else:
            self._start(self._wait_for_room(wanted))

    def _may_stay_uncounted(self, wanted: int) -> bool:
        """Note that a message of so many bytes is not counted; False: it is large, or its connection has many of them."""
        more = wanted - self._uncounted_bytes
        if wanted > UNCOUNTED_BYTES or self._connection.uncounted_bytes + more > _UNCOUNTED_OF_CONNECTION:
            return False
        self._note_uncounted(wanted)
        return True

    def _note_uncounted(self, size_bytes: int) -> None:
        self._connection.uncounted_bytes += size_bytes - self._uncounted_bytes
        self._uncounted_bytes = size_bytes

    async def _wait_for_room(self, wanted: int) -> None:
        try:
            await self._connection.budget.acquire(wanted, self._connection.body_timeout_s)
        except ControlPlaneError as exc:
            self.refuse(exc)
            return
        self._granted_bytes, self._task = wanted, None
        self._connection.consumed(self._stream, self._stream.held_bytes)
        if self._is_whole:  # the message fitted into the first window and arrived completely while this waited
            self._start(self._answer())

    async def _answer(self) -> None:
        """Run the handler and end the call: the one place where the errors of calls become statuses."""
        handler, head, frame, messages = self._handler, self._head, self._frame, self._messages
        self._frame = None
        assert handler is not None
        assert head is not None
        try:
            if messages is not None:
                assert handler.stream is not None
                answer = await handler.stream(head, messages, self._principal)
            else:
                if self._is_late:  # its caller's key may have been revoked while the message came
                    handler, self._principal = self._connection.handler_for(head)
                assert handler.unary is not None
                assert frame is not None
                block = b"" if self._stream.whole is None else self._stream.whole[0]
                waited_s = 0.0 if self._came_s is None else asyncio.get_running_loop().time() - self._came_s
                answer = await handler.unary(GrpcCall(head, frame, self._principal, block, waited_s=waited_s))
        except Exception as exc:
            answer = failure(exc)
        finally:
            self._release()  # before the answer is written: a slow client must not hold memory for its request
            if messages is not None:
                # Later data is dropped (`on_data`); and the two would keep each other alive until a garbage collection.
                self._handler = self._messages = None
        if isinstance(frame, memoryview) and isinstance(frame.obj, bytearray):
            holder, frame = [frame.obj], None
            free_in_steps(holder)
        if messages is None:
            self._connection.answer(self._stream, answer)
        else:
            messages.finish(answer)

    # Streaming calls

    def _count_large(self, finished: list[MessageFrame] | tuple[()]) -> None:
        """Take memory for the large messages of a streaming call, each until its handler is done with it, or refuse the call:
        waiting would delay the messages behind it."""
        for frame in finished:
            if not self._partial_is_counted:  # it came at once
                self._count(len(frame))
            self._partial_is_counted = False
        if not self._partial_is_counted:
            self._partial_is_counted = self._count(self._reader.partial_bytes)

    def _count(self, size_bytes: int) -> bool:
        if size_bytes <= UNCOUNTED_BYTES:
            return False
        if not self._connection.budget.try_acquire(size_bytes):
            raise Overloaded(f"no memory for a message of {size_bytes} bytes now; try again")
        self._granted_bytes += size_bytes
        return True

    def _forget_message(self, size_bytes: int) -> None:
        """Give back the memory of a message of a streaming call with which its handler is done."""
        if size_bytes > UNCOUNTED_BYTES and self._granted_bytes:  # all has been given back where the call has ended
            self._granted_bytes -= size_bytes
            self._connection.budget.release(size_bytes)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        self._task = self._connection.tasks.create_task(work, name="grpc-call")

    def refuse(self, error: ControlPlaneError) -> None:
        """End the call with an error's status, whatever runs for it; later data is dropped."""
        task, self._task, self._handler = self._task, None, None
        # Its own task refuses it where room for the message did not come in time.
        if task is not None and task is not asyncio.current_task():
            task.cancel(error)  # for the records of the request (`inference/in_flight/running_request`)
        if self._messages is None:
            self._connection.answer(self._stream, failure(error))
        else:
            self._messages.finish(failure(error))
        self._release()

    def _release(self) -> None:
        if self._uncounted_bytes:
            self._note_uncounted(0)
        if self._granted_bytes:
            self._connection.budget.release(self._granted_bytes)
            self._granted_bytes = 0
