"""One client's HTTP/1.1 connection on an asyncio transport: answers the requests that its reader finds, in
order.

Each connection is one task. A client that disconnects cancels it, and with it all the work for its request.
Made by `frontends/http/server`, which also checks the time-outs of all connections.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import cast

from control_plane.core.errors import ControlPlaneError, GatewayStopping, HeadTooLarge, InvalidRequest, RequestTimeout
from control_plane.frontends.common.body_budget import UNCOUNTED_BYTES
from control_plane.frontends.common.connection_server import address_of, is_local
from control_plane.frontends.common.read_scheduler import LARGE_READ_BYTES
from control_plane.frontends.http.answer_writer import AnswerWriter
from control_plane.frontends.http.body_room import BodyRoom
from control_plane.frontends.http.connection_host import ConnectionHost
from control_plane.frontends.http.request_reader import RequestReader
from control_plane.frontends.http.stalls import StallClock
from control_plane.frontends.http.streams import error_event, forward
from control_plane.host.large_buffers import free_in_steps
from control_plane.protocols.http1 import HttpAnswer, HttpRequest
from control_plane.triton.ports import HttpStream

_log = logging.getLogger(__name__)

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_MAX_UNREAD_BYTES = 16 * 1024
"""Bytes that are buffered while a request is being answered. With more, the socket is not read any further,
and then the end of a client that disconnects goes unnoticed."""

_LINGER_S = 2.0
"""Seconds that a refused client may go on sending. Closing a socket with unread bytes resets the connection,
and the client would never read the refusal."""

_Item = tuple[HttpRequest | HttpAnswer, bool, int]
"""A request, or an answer ready to be sent; whether the connection stays open after it; bytes held of the
budget."""


def _buffer_of(item: HttpRequest | HttpAnswer) -> list[bytearray]:
    """The body of a request that came in pieces, for `free_in_steps`."""
    return [item.body] if isinstance(item, HttpRequest) and isinstance(item.body, bytearray) else []


class HttpConnection(asyncio.Protocol):
    """Server side of one HTTP/1.1 connection: reads requests, answers them in order, with back-pressure both
    ways."""

    def __init__(self, server: ConnectionHost[HttpConnection], tasks: asyncio.TaskGroup) -> None:
        self._server = server
        self._verbatim = server.verbatim
        self.verbatim_entries = server.verbatim.entries
        self._tasks = tasks
        self._transport: asyncio.Transport | None = None
        self._reader: RequestReader
        self._task: asyncio.Task[None] | None = None
        self._queue: deque[_Item] = deque()
        self._arrival: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._writer = AnswerWriter(server.writes, server.connected)
        self._is_answering = False
        self._is_leaving = False
        self._is_paused = False
        self._has_refused = False
        self._lingers = False
        """Whether the refusal has been sent; data that still arrives is read and dropped."""
        self._has_backlog = False
        """Whether more data has arrived than has been parsed, or may be parsed in this turn of the loop."""
        self._has_read_much = False
        """Whether the socket is not read until the scheduler says so (`read_scheduler.PausedConnection`)."""
        self._taken = 0
        self._room = BodyRoom(server.budget, tasks, patience_s=server.limits.body_timeout_s, granted=self._on_room, refused=self.refuse)
        self._stall = StallClock()
        self._ended_by: ControlPlaneError | None = None
        """The error that answers the request in flight, whose work has been cancelled."""

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
        self._task = self._tasks.create_task(self._serve(), name="http-connection")

    def data_received(self, data: bytes) -> None:
        if len(data) >= LARGE_READ_BYTES:
            self._has_read_much = True
            self._server.reads.put_off(self)
            self._pause_as_needed()
        if self._has_backlog or ((self._is_answering or self._queue or self._room.waiting is not None) and self._is_held):
            self._reader.keep(data)  # pipelined requests wait until the ones before them have been answered
            self._has_backlog = self._reader.has_backlog
            self._pause_as_needed()
            return
        has_backlog = self._reader.feed(data)
        if self._reader.wants_continue:
            self._continue_if_due()
        if has_backlog or self._lingers:
            self._has_backlog = True
            self._pause_as_needed()
            self._server.reads.add(self)
        elif not self._has_read_much:
            self._server.reads.kept_up = self

    def read_socket(self) -> None:
        """See `read_scheduler.PausedConnection`."""
        self._has_read_much = False
        self._pause_as_needed()

    def read_backlog(self, until_s: float) -> bool:
        """Parse the backlog for a while; see `read_scheduler.Reading`."""
        while self._may_read_backlog:
            has_backlog = self._reader.read_backlog()
            if self._reader.wants_continue:
                self._continue_if_due()
            if not has_backlog or self._server.reads.now_s() >= until_s:
                break
        self._has_backlog = self._reader.has_backlog
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
        return self._is_answering or bool(self._queue) or self._room.waiting is not None

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
        self._room.release(self._room.hand_over() + sum(held for _, _, held in self._queue))
        self._queue.clear()

    def pause_writing(self) -> None:
        self._writer.pause()

    def resume_writing(self) -> None:
        self._writer.resume()
        if self._may_read_backlog:
            self._server.reads.add(self)

    # The reader's sink

    def answer_verbatim(self, head: bytes, body: bytes) -> bool:
        """See `request_sink.RequestSink`; False also if the answer would come before earlier ones, or while the
        client reads none."""
        if self._queue or self._is_answering or not self._writer.may_write or self._server.is_draining:
            return False
        try:
            answer = self._verbatim.answer(head, body)
        except Exception as exc:
            refusal = self._server.render_error(exc, b"")
            answer = refusal.head + refusal.body
        if answer is None:
            return False
        self._taken += 1
        self._writer.write(answer)
        return True

    def accept(self, request: HttpRequest, *, keep_alive: bool) -> None:
        # Where room is waited for yet, the whole body arrived together with its head: its memory is in use already.
        held_bytes = self._room.hand_over()
        if request.stream is not None and self._reader.wants_continue:
            self._continue_if_due()
        # The queue owns the room from here on: `connection_lost` gives back what waits in it.
        self._enqueue(request, keep_alive, held_bytes)

    def refuse(self, error: ControlPlaneError) -> None:
        """Answer `error` after the answers to earlier requests, and close: later bytes cannot be parsed any
        more."""
        if self._has_refused:
            return
        # What follows has lost its boundaries, and might be read as a request that nobody sent.
        self._has_refused = self._reader.has_ended = True
        if isinstance(error, InvalidRequest | HeadTooLarge):
            self._server.breached(self)
        if self._reader.stream is not None:  # its request is being answered, and is told by this error
            self._reader.stream.fail(error)
            return
        self._enqueue(self._server.render_error(error, self._reader.target), False, 0)
        self._pause_as_needed()

    def reserve(self, size_bytes: int) -> None:
        """Take memory for a body from the budget; if there is none, stop reading the socket until there
        is."""
        self._room.reserve(size_bytes)
        if self._room.waiting is not None:
            self._pause_as_needed()

    def read_on(self) -> None:
        if self._has_backlog:
            self._server.reads.add(self)

    # The server's

    @property
    def is_idle(self) -> bool:
        """See `connection_server.Connection`; also true before the first request."""
        is_busy = self._is_answering or self._queue or self._room.waiting is not None or self._has_refused or self._has_backlog
        return not is_busy and not self._writer.has_unsent and self._reader.is_between_requests and self._writer.may_write

    def leave(self) -> None:
        """Drain: close now, or after the request in flight has been answered completely.

        A request is in flight once its head has been read; one of which less has come is refused.
        """
        self._is_leaving = True
        if self._transport is None or self._is_answering or self._queue:
            return
        if self._lingers or (self._reader.is_between_requests and not self._has_backlog):
            self._writer.flush()
            self._transport.close()
        elif not self._reader.head_is_read and not self._has_backlog:
            self.refuse(GatewayStopping())

    def refuse_rest(self, error: ControlPlaneError) -> None:
        """End of the drain: cancel the request in flight and answer `error` in its place."""
        if self._transport is None or self._transport.is_closing():
            return
        if not self._is_answering:
            self.refuse(error)
        elif self._task is not None:
            # Before the cancellation: `_serve` tells by it that the client is still there, and is to be answered.
            self._ended_by = error
            self._task.cancel(error)  # for the records of the request (`inference/in_flight/running_request`)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def enforce_timeouts(self, now_s: float) -> None:
        """Enforce the time-outs for heads, bodies, idle connections and unread answers; called about once a
        second."""
        limits, transport, reader = self._server.limits, self._transport, self._reader
        if transport is None:
            return
        if not self._writer.may_write:
            if self._stall.has_stalled(now_s, limits.body_timeout_s, "writing", self._writer.progress):
                transport.abort()
        elif reader.stream is not None and not (reader.stream.is_full or self._has_backlog or self._has_refused):
            self._enforce_body_timeout(now_s)
        elif self._is_answering or self._queue or self._room.waiting or self._has_refused or self._has_backlog:
            # It is not the client that is waited for.
            self._stall.clear()
        elif reader.is_between_requests:
            if limits.idle_timeout_s and self._stall.has_stalled(now_s, limits.idle_timeout_s, "idle", self._taken):
                transport.close()
        elif not reader.head_is_read:
            if self._stall.has_stalled(now_s, limits.header_timeout_s, "head", self._taken):
                self.refuse(RequestTimeout(f"the request's head did not come within {limits.header_timeout_s:g} s"))
        else:
            self._enforce_body_timeout(now_s)

    def _enforce_body_timeout(self, now_s: float) -> None:
        reader, limit_s = self._reader, self._server.limits.body_timeout_s
        if self._stall.has_stalled(now_s, limit_s, "body", self._taken, reader.body_progress):
            self.refuse(RequestTimeout(f"the request's body came too slowly, or not at all, for {limit_s:g} s"))

    # Answering

    async def _serve(self) -> None:
        """Answer the queued requests in order until the connection has to close; the body of the connection's
        task."""
        try:
            keep_alive = True
            while keep_alive and not self._is_leaving:
                while not self._queue:
                    await self._next_arrival()
                item, keep_alive, held_bytes = self._queue.popleft()
                if self._is_paused:
                    self._pause_as_needed()
                if self._reader.wants_continue and self._receives(item):  # pipelined behind another, which is answered now
                    self._continue_if_due()
                self._is_answering = True
                try:
                    answer = item if isinstance(item, HttpAnswer) else await self._server.application(item)
                except asyncio.CancelledError:
                    if self._ended_by is None:
                        raise
                    answer = self._server.render_error(self._ended_by, item.target if isinstance(item, HttpRequest) else b"")
                except Exception as exc:
                    answer = self._server.render_error(exc, item.target if isinstance(item, HttpRequest) else b"")
                finally:
                    if held_bytes:
                        self._room.release(held_bytes)
                keep_alive = keep_alive and not self._server.is_draining  # a drain may have begun while the answer was made
                # Answered before its body was whole: the rest cannot be told from a request.
                if self._reader.stream is not None and self._receives(item):
                    keep_alive, self._reader.has_ended, self._has_refused = False, True, True
                is_head = isinstance(item, HttpRequest) and item.method == b"HEAD"
                buffer = _buffer_of(item)
                if isinstance(answer, HttpAnswer):
                    del item  # frees the request's body, which must not stay in memory while a slow client reads
                    if buffer:
                        free_in_steps(buffer)
                    if is_head or len(answer.body) <= UNCOUNTED_BYTES:
                        self._writer.write_small(answer, keep_alive=keep_alive, is_head=is_head)
                    else:
                        await self._writer.write_large(answer, keep_alive=keep_alive)
                else:
                    takes_chunks = isinstance(item, HttpRequest) and item.takes_chunks
                    del item
                    if buffer:
                        free_in_steps(buffer)
                    await self._send_stream(answer, keep_alive=keep_alive, takes_chunks=takes_chunks, is_head=is_head)
                self._is_answering = False
                # A client that pipelines requests and reads no answers has one of them here, not all.
                if not self._writer.may_write:
                    await self._writer.writable.wait()
            await self._close()
        except asyncio.CancelledError:
            if self._transport is not None:
                self._transport.abort()
            raise
        except Exception:
            _log.exception("an HTTP connection failed; this is a defect")
            self.abort()

    def _receives(self, item: HttpRequest | HttpAnswer) -> bool:
        """Whether this is the request whose streamed body is not whole yet."""
        stream = self._reader.stream
        return stream is not None and isinstance(item, HttpRequest) and item.stream is stream

    async def _close(self) -> None:
        """Close the connection; after a refusal, half-close it and let the client read why."""
        if self._reader.has_ended and self._transport is not None:
            if self._transport.can_write_eof():  # asyncio's TLS transports cannot half-close
                self._transport.write_eof()
            self._lingers = True
            self._pause_as_needed()
            await asyncio.sleep(_LINGER_S)  # cut short when the client closes, since that cancels this task
        if self._transport is not None:
            self._transport.close()

    def _next_arrival(self) -> asyncio.Future[None]:
        """Let the reader go on, as the queue is empty; the future ends when a request has come."""
        if self._reader.wants_continue:
            self._continue_if_due()
        if self._has_backlog:
            self._server.reads.add(self)
        self._arrival = self._loop.create_future()
        return self._arrival

    def _enqueue(self, item: HttpRequest | HttpAnswer, keep_alive: bool, held_bytes: int) -> None:
        self._taken += 1
        self._queue.append((item, keep_alive, held_bytes))
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    async def _send_stream(self, stream: HttpStream, *, keep_alive: bool, takes_chunks: bool, is_head: bool) -> None:
        """Forward a streamed answer; break it off, or end it with an error, where it cannot come to its end."""
        try:
            await forward(
                stream, self._writer.write, self._writer.writable, keep_alive=keep_alive, takes_chunks=takes_chunks, is_head=is_head
            )
        except ControlPlaneError as exc:
            _log.info("an answer broke off: %s", exc)
            self.abort()  # without the last chunk, by which the client knows that the answer is incomplete
        except asyncio.CancelledError:
            event = None if self._ended_by is None else error_event(stream.head, self._ended_by)
            if event is None:
                raise
            self._writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event) if takes_chunks else event)
        finally:
            stream.close()

    # Reading only as much as there is room for

    def _pause_as_needed(self) -> None:
        """Pause or resume reading of the socket, by what is buffered and waited for: the back-pressure on the
        client."""
        if self._transport is None:
            return
        # Once a refusal has been sent, what still comes is read again, and dropped: closing a socket with unread bytes
        # would take the refusal from the client.
        is_refusing = self._has_refused and not self._lingers
        has_much = self._has_backlog and (self._lingers or self._reader.unread_bytes > _MAX_UNREAD_BYTES)
        must_pause = is_refusing or has_much or self._has_read_much or self._room.waiting is not None
        if must_pause and not self._is_paused:
            self._transport.pause_reading()
        elif self._is_paused and not must_pause:
            self._transport.resume_reading()
        self._is_paused = must_pause

    def _continue_if_due(self) -> None:
        """Send `100 Continue`, unless earlier answers or memory for the body are still waited for."""
        if not self._room.waiting and not self._queue and not self._is_answering:
            self._reader.wants_continue = False
            self._writer.write(_CONTINUE)

    def _on_room(self) -> None:
        """There is room for the body now: go on reading it."""
        self._pause_as_needed()
        if self._reader.wants_continue:
            self._continue_if_due()
        if self._has_backlog:
            self._server.reads.add(self)
