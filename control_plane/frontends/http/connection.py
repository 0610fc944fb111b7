"""One client's HTTP/1.1 connection on an asyncio transport: feeds its bytes to the request reader, and answers the requests in order.

Each connection is one task. A client that disconnects cancels it, and with it all work for its request. Made by
`frontends/http/server`, which also checks the time-outs of all connections.
"""

from __future__ import annotations

import asyncio
import logging
from enum import Enum, auto
from typing import cast

from control_plane.core.errors import ControlPlaneError, GatewayStopping, HeadTooLarge, InvalidRequest
from control_plane.frontends.common.connection_server import address_of, is_local
from control_plane.frontends.common.read_scheduler import LARGE_READ_BYTES
from control_plane.frontends.http.answers.loop import AnswerLoop
from control_plane.frontends.http.answers.writer import AnswerWriter
from control_plane.frontends.http.connection_host import ConnectionHost
from control_plane.frontends.http.lingering import LINGER_S, Lingering
from control_plane.frontends.http.requests.body_room import BodyRoom
from control_plane.frontends.http.requests.reader import RequestReader
from control_plane.frontends.http.timeouts import Awaited, ClientTimeouts
from control_plane.protocols.http1 import BodyPieces, HttpRequest

_log = logging.getLogger(__name__)

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_MAX_UNREAD_BYTES = 16 * 1024
"""Bytes that are buffered while a request is being answered. With more, the socket is not read any further,
and then the end of a client that disconnects goes unnoticed."""


class _Stage(Enum):
    """How near its end a connection is: it only ever goes on to a later stage."""

    OPEN = auto()
    """Requests are read. So it stays where the reader ends by itself, after an offer to upgrade that it passes over."""
    REFUSED = auto()
    """Nothing more is parsed: the last answer is queued or being sent, a refusal or one to a request that is cut off."""
    LINGERING = auto()
    """All is answered, and `Lingering` has the transport."""


class HttpConnection(asyncio.Protocol):
    """Server side of one HTTP/1.1 connection: reads requests as fast as they are answered."""

    def __init__(self, server: ConnectionHost[HttpConnection], tasks: asyncio.TaskGroup) -> None:
        self._server = server
        self._verbatim = server.verbatim
        self.verbatim_entries = server.verbatim.entries
        self._tasks = tasks
        self._transport: asyncio.Transport | None = None
        self._reader: RequestReader
        self._timeouts: ClientTimeouts
        self._task: asyncio.Task[None] | None = None
        self._writer = AnswerWriter(server.writes, server.connected)
        self._answers = AnswerLoop(server, self._writer, self)
        self._stage = _Stage.OPEN
        self._is_paused = False
        """Whether the socket is not read, for one of the reasons of `_pause_as_needed`."""
        self._waits_for_turn = False
        """Whether the socket is not read until the scheduler says so, after a large read."""
        self._taken = 0
        self._room = BodyRoom(server.budget, tasks, patience_s=server.limits.body_timeout_s, granted=self._on_room, refused=self.refuse)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one by behaviour, not by class
        peer = address_of(self._transport)
        if not self._server.opened(self, peer):
            self._transport.abort()
            return
        self._writer.begin(self._transport)
        self._server.begin_reading(self, self._transport)
        self._reader = RequestReader(
            self,
            self._server.limits,
            self._server.admit,
            peer=peer,
            peer_is_local=is_local(self._transport),
            per_request=self._verbatim.fields,
            hosts=self._server.hosts if peer else None,  # against DNS rebinding; no web page can reach a Unix socket
            streams=self._server.streams,
        )
        self._timeouts = ClientTimeouts(self._server.limits, self._reader, self._writer, self.refuse)
        self._task = self._tasks.create_task(self._serve(), name="http-connection")

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if len(data) >= LARGE_READ_BYTES:
            self._waits_for_turn = True
            self._server.reads.put_off(self)
            self._pause_as_needed()
        if reader.has_backlog or ((self._answers.is_busy or self._room.waiting is not None) and self._is_held):
            reader.keep(data)  # pipelined requests wait until the ones before them have been answered
            self._pause_as_needed()
            return
        has_backlog = reader.feed(data)
        if reader.wants_continue:
            self._continue_if_due()
        if has_backlog:
            self._pause_as_needed()
            self._server.reads.add(self)
        elif not self._waits_for_turn:
            self._server.reads.kept_up = self

    def read_socket(self) -> None:
        """See `read_scheduler.PausedConnection`."""
        self._waits_for_turn = False
        self._pause_as_needed()

    is_over = False
    """See `read_scheduler.BackloggedConnection`; of a client that has left nothing is left to cancel later."""

    def read_backlog(self, until_s: float) -> bool:
        """Parse the backlog for a while; see `read_scheduler.BackloggedConnection`."""
        while self._may_read_backlog:
            has_backlog = self._reader.read_backlog()
            if self._reader.wants_continue:
                self._continue_if_due()
            if not has_backlog or self._server.reads.now_s() >= until_s:
                break
        self._pause_as_needed()
        return self._may_read_backlog

    @property
    def _may_read_backlog(self) -> bool:
        """Whether there is a backlog to parse, and nothing that must be done before."""
        return self._reader.has_backlog and not self._is_held and self._writer.may_write and self._transport is not None

    @property
    def _is_held(self) -> bool:
        """Whether what arrives has to wait: for answers to earlier requests, for memory, or for who receives a body."""
        if (stream := self._reader.stream) is not None:
            return stream.is_full
        return self._answers.is_busy or self._room.waiting is not None

    def eof_received(self) -> bool:
        return False  # a half-closed connection counts as a client that has left: close it, which cancels its request

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._writer.end()
        self._server.closed(self)
        self._server.reads.remove(self)
        if self._task is not None:
            self._task.cancel()
            # The task's traceback refers to this object: the cycle would keep request and answer until a full
            # collection.
            self._task = None
            self._reader.forget()
        self._room.release(self._room.hand_over())
        self._answers.drop()

    def pause_writing(self) -> None:
        self._writer.pause()

    def resume_writing(self) -> None:
        self._writer.resume()
        if self._may_read_backlog:
            self._server.reads.add(self)

    # The reader's sink

    def answer_verbatim(self, head: bytes, body: bytes) -> bool:
        """See `requests.sink.RequestSink`; False also if the answer would come before earlier ones, or while the
        client reads none."""
        if self._answers.is_busy or not self._writer.may_write or self._server.is_draining:
            return False
        try:
            answer = self._verbatim.answer(head, body)
        except Exception as exc:
            refusal = self._server.render_error(exc, b"")
            answer = refusal.head + refusal.body
        if answer is None:
            return False
        self._taken += 1
        self._server.reads.came += 1
        self._writer.write(answer)
        return True

    def accept(self, request: HttpRequest, *, keep_alive: bool) -> None:
        # Where room is waited for yet, the whole body arrived together with its head: its memory is in use already.
        held_bytes = self._room.hand_over()
        if self._is_paused:
            self._pause_as_needed()
        self._taken += 1
        self._answers.add(request, keep_alive=keep_alive, held_bytes=held_bytes)

    def refuse(self, error: ControlPlaneError) -> None:
        """Answer `error` after the answers to earlier requests, and close: later bytes cannot be parsed any more."""
        if self._stage is not _Stage.OPEN:
            return
        self._end_reading()
        if isinstance(error, InvalidRequest | HeadTooLarge):
            self._server.breached(self)
        if self._reader.stream is not None:  # its request is being answered, and is told by this error
            self._reader.stream.fail(error)
            return
        self._taken += 1
        self._answers.add_refusal(self._server.render_error(error, self._reader.target))
        self._pause_as_needed()

    def reserve(self, size_bytes: int) -> None:
        """Take memory for a body from the budget; if there is none, stop reading the socket until there is."""
        self._room.reserve(size_bytes)
        if self._room.waiting is not None:
            self._pause_as_needed()

    def read_on(self) -> None:
        """Read what has had to wait; also the answer loop's, see `answers.loop.Intake`."""
        if self._reader.wants_continue:
            self._continue_if_due()
        if self._reader.has_backlog:
            self._server.reads.add(self)

    # The answer loop's intake

    def receive(self, stream: BodyPieces) -> None:
        """See `answers.loop.Intake`."""
        if self._reader.wants_continue and self._reader.stream is stream:  # not pipelined behind another any more
            self._send_continue()

    def cut_off(self, stream: BodyPieces) -> bool:
        """See `answers.loop.Intake`."""
        if self._reader.stream is not stream:
            return False
        self._end_reading()
        return True

    def _end_reading(self) -> None:
        """Read no further request: what follows has lost its boundaries, and might be taken for one that nobody sent."""
        self._stage = _Stage.REFUSED
        self._reader.stop()

    # The server's

    @property
    def is_idle(self) -> bool:
        """See `connection_server.Connection`; also true before the first request."""
        return self._awaited is Awaited.REQUEST and not self._writer.has_unsent

    def leave(self) -> None:
        """Drain: close now, or after the request in flight has been answered completely.

        A request is in flight once its head has been read; one of which less has come is refused.
        """
        self._answers.is_leaving = True
        if self._transport is None or self._answers.is_busy:
            return
        if self._stage is _Stage.LINGERING or (self._reader.is_between_requests and not self._reader.has_backlog):
            self._writer.flush()
            self._transport.close()
        elif not self._reader.head_is_read and not self._reader.has_backlog:
            self.refuse(GatewayStopping())

    def refuse_rest(self, error: ControlPlaneError) -> None:
        """End of the drain: cancel the request in flight and answer `error` in its place."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._task is not None and not self._answers.end_request(error, self._task):
            self.refuse(error)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def enforce_timeouts(self, now_s: float) -> None:
        """See `connection_server.Connection`."""
        if self._transport is not None:
            self._timeouts.enforce(now_s, self._awaited, self._taken, self._transport)

    @property
    def _awaited(self) -> Awaited:
        """What this connection waits for its client to do."""
        reader = self._reader
        if not self._writer.may_write:
            return Awaited.READING
        if self._stage is not _Stage.OPEN or reader.has_backlog or self._room.waiting is not None:
            return Awaited.NOTHING
        if reader.stream is not None:  # also while its request is being answered
            return Awaited.NOTHING if reader.stream.is_full else Awaited.BODY
        if self._answers.is_busy:
            return Awaited.NOTHING
        if reader.is_between_requests:
            return Awaited.REQUEST
        return Awaited.BODY if reader.head_is_read else Awaited.HEAD

    # Answering

    async def _serve(self) -> None:
        """Answer requests until the connection has to close, and close it; the body of the connection's task."""
        try:
            await self._answers.run()
            await self._close()
        except asyncio.CancelledError:
            self.abort()
            raise
        except Exception:
            _log.exception("an HTTP connection failed; this is a defect")
            self.abort()

    async def _close(self) -> None:
        """Close the connection; if bytes may come that nobody reads, let the client read the last answer first."""
        if self._reader.has_ended and self._transport is not None:
            self._begin_lingering(self._transport)
            await asyncio.sleep(LINGER_S)  # cut short when the client closes, since that cancels this task
        if self._transport is not None:
            self._transport.close()

    def _begin_lingering(self, transport: asyncio.Transport) -> None:
        """Hand the transport over, with its socket being read."""
        self._stage = _Stage.LINGERING
        self._room.release(self._room.hand_over())
        self._reader.forget()
        self._server.reads.remove(self)
        self._waits_for_turn = False
        self._pause_as_needed()
        Lingering(self, transport, self._server.reads)

    # Reading only as much as there is room for

    def _pause_as_needed(self) -> None:
        """Pause or resume reading of the socket, by what is buffered and waited for: the back-pressure on the client."""
        if self._transport is None:
            return
        must_pause = (
            self._waits_for_turn
            or self._room.waiting is not None
            or self._reader.unread_bytes > _MAX_UNREAD_BYTES
            or self._stage is _Stage.REFUSED  # until the refusal has been sent: see `lingering`
        )
        if must_pause and not self._is_paused:
            self._transport.pause_reading()
        elif self._is_paused and not must_pause:
            self._transport.resume_reading()
        self._is_paused = must_pause

    def _continue_if_due(self) -> None:
        """Send `100 Continue`, unless earlier answers or memory for the body are still waited for."""
        if not self._room.waiting and not self._answers.is_busy:
            self._send_continue()

    def _send_continue(self) -> None:
        self._reader.wants_continue = False
        self._writer.write(_CONTINUE)

    def _on_room(self) -> None:
        """There is room for the body now: go on reading it."""
        self._pause_as_needed()
        self.read_on()
