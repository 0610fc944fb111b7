"""One client's HTTP/1.1 connection on an asyncio transport: answers the requests that its reader finds, in order.

A connection is one task; a client that leaves cancels it, and with it everything its request had under way. Made by
`frontends/http/server`, which knows the address and the other connections, and looks at the time for all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol, cast

from control_plane.core.errors import ControlPlaneError, Overloaded, RequestTimeout
from control_plane.frontends.common.body_budget import UNCOUNTED_BYTES, BodyBudget
from control_plane.frontends.common.connection_server import address_of, is_local
from control_plane.frontends.common.read_scheduler import ReadScheduler
from control_plane.frontends.http.request_reader import Admit, HttpLimits, RequestReader
from control_plane.host.exposure import AllowedHosts
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, with_header, without_chunks
from control_plane.triton.ports import HttpStream

__all__ = ["Application", "ConnectionOwner", "HttpConnection", "HttpLimits", "RenderError"]

_log = logging.getLogger(__name__)

Application = Callable[[HttpRequest], Awaitable[HttpAnswer | HttpStream]]
AnswerAtOnce = Callable[[HttpRequest, bytes], HttpAnswer | None]
AnswerKnown = Callable[[bytes], bytes | None]
RenderError = Callable[[ControlPlaneError, bytes], HttpAnswer]
"""The answer to a request for that target, as far as it has come."""

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_MAX_UNREAD_BYTES = 16 * 1024
"""Of what came behind a request that is being answered; with more the socket is not read, and a client that leaves is not seen."""

_WRITE_BYTES = 256 * 1024
"""Of a large answer at a time: TLS encrypts what it is given at one go."""

_LINGER_S = 2.0
"""How long a refused client may go on sending. Closing on unread bytes resets the connection, and the refusal is lost."""

_Item = tuple[HttpRequest | HttpAnswer, bool, int]
"""What is to be answered, or the answer, whether the connection goes on then, and the bytes held of the budget."""


class ConnectionOwner(Protocol):
    """The server, as its connections see it."""

    application: Application
    answer_at_once: AnswerAtOnce
    answer_known: AnswerKnown
    render_error: RenderError
    admit: Admit
    limits: HttpLimits
    hosts: AllowedHosts | None
    budget: BodyBudget
    is_draining: bool
    reads: ReadScheduler

    def opened(self, connection: HttpConnection, address: str) -> bool: ...

    def closed(self, connection: HttpConnection) -> None: ...


class HttpConnection(asyncio.Protocol):
    """One client's connection: reads a request, answers it, and reads on."""

    def __init__(self, server: ConnectionOwner, tasks: asyncio.TaskGroup) -> None:
        self._server = server
        self._tasks = tasks
        self._transport: asyncio.Transport | None = None
        self._reader: RequestReader
        self._task: asyncio.Task[None] | None = None
        self._queue: deque[_Item] = deque()
        self._arrival: asyncio.Future[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._is_answering = False
        self._is_paused = False
        self._has_refused = False
        self._lingers = False
        """The refusal is sent; what comes is read and forgotten."""
        self._is_behind = False
        """More has come than has been read, or may be read in this turn of the loop."""
        self._taken = 0
        self._held_bytes = 0
        self._owed_bytes = 0
        self._waiting: asyncio.Task[None] | None = None
        self._progress: tuple[object, ...] = ()
        self._progress_at_s = 0.0

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one by behaviour, not by class
        peer = address_of(self._transport)
        if not self._server.opened(self, peer):
            self._transport.abort()
            return
        self._reader = RequestReader(
            self,
            self._server.limits,
            self._server.admit,
            peer=peer,
            peer_is_local=is_local(self._transport),
            hosts=self._server.hosts if peer else None,  # no web page reaches a Unix socket
        )
        self._task = self._tasks.create_task(self._serve(), name="http-connection")

    def data_received(self, data: bytes) -> None:
        if self._is_answering or self._queue or self._is_behind or self._waiting is not None:
            self._reader.keep(data)
            self._is_behind = self._reader.is_behind
            self._pause_as_needed()
            return
        is_behind = self._reader.feed(data)
        if self._reader.wants_continue:
            self._continue_if_due()
        if is_behind or self._lingers:
            self._is_behind = True
            self._pause_as_needed()
            self._server.reads.add(self)

    def read_on(self, until_s: float) -> bool:
        """As `read_scheduler.Reading`."""
        while self._may_read_on:
            is_behind = self._reader.read_on()
            if self._reader.wants_continue:
                self._continue_if_due()
            if not is_behind or self._server.reads.now_s() >= until_s:
                break
        self._is_behind = self._reader.is_behind
        self._pause_as_needed()
        return self._may_read_on

    @property
    def _may_read_on(self) -> bool:
        """Whether there is something to read, and nothing to be done before."""
        is_busy = self._is_answering or self._queue or self._waiting is not None
        return self._reader.is_behind and not is_busy and self._writable.is_set() and self._transport is not None

    def eof_received(self) -> bool:
        return False  # a client that stops sending has left: close, which cancels its request

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._server.closed(self)
        self._server.reads.remove(self)
        if self._task is not None:
            self._task.cancel()
            self._task = None  # its traceback leads back here, and a ring would hold request and answer until the next full collection
            self._reader.forget()
        self._stop_waiting()
        self._give(self._held_bytes + sum(held for _, _, held in self._queue))
        self._held_bytes = 0
        self._queue.clear()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()
        if self._may_read_on:
            self._server.reads.add(self)

    # The reader's sink

    def knows(self, message: bytes) -> bool:
        if not self._is_idle:
            return False
        answer = self._server.answer_known(message)
        if answer is None:
            return False
        self._taken += 1
        self._write(answer)
        return True

    def take(self, request: HttpRequest, *, keep_alive: bool, message: bytes = b"") -> None:
        if self._waiting is not None:
            self._stop_waiting()  # all of it came with its head: the memory is taken already
        held, self._held_bytes = self._held_bytes, 0
        if keep_alive and not held and self._is_idle and (answer := self._server.answer_at_once(request, message)) is not None:
            self._taken += 1
            self._write(answer.head + answer.body)
        else:
            self._put(request, keep_alive, held)

    def refuse(self, error: ControlPlaneError) -> None:
        """Answer `error` after what came before it, and close: what follows can no longer be told apart."""
        if self._has_refused:
            return
        self._has_refused = self._reader.has_ended = True
        self._put(self._server.render_error(error, self._reader.target), False, 0)
        self._pause_as_needed()

    def reserve(self, size_bytes: int) -> None:
        if self._waiting is None and self._server.budget.try_take(size_bytes):
            self._held_bytes += size_bytes
            return
        self._owed_bytes += size_bytes
        if self._waiting is None:
            self._waiting = self._tasks.create_task(self._wait_for_budget(), name="http-body-budget")
            self._pause_as_needed()

    @property
    def _is_idle(self) -> bool:
        """Whether an answer now would be in its turn, and its client has read those before."""
        return not self._queue and not self._is_answering and self._writable.is_set() and not self._server.is_draining

    # The server's

    def leave(self) -> None:
        """Close now, or after the answer that is being made; one that is being sent is sent to its end."""
        if not self._is_answering and not self._queue and self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def check_time(self, now_s: float) -> None:
        """End what has made no progress for too long; called about once a second, so requests need no timers."""
        limits, transport, reader = self._server.limits, self._transport, self._reader
        if transport is None:
            return
        if not self._writable.is_set():
            if self._has_stalled(now_s, limits.body_timeout_s, "writing", transport.get_write_buffer_size()):
                transport.abort()
        elif self._is_answering or self._queue or self._waiting or self._has_refused or self._is_behind:
            self._progress = ()
        elif reader.is_between_requests:
            if limits.idle_timeout_s and self._has_stalled(now_s, limits.idle_timeout_s, "idle", self._taken):
                transport.close()
        elif not reader.head_is_read:
            if self._has_stalled(now_s, limits.header_timeout_s, "head", self._taken):
                self.refuse(RequestTimeout(f"the request's head did not come within {limits.header_timeout_s:g} s"))
        elif self._has_stalled(now_s, limits.body_timeout_s, "body", self._taken, reader.body_bytes // reader.body_step_bytes):
            self.refuse(RequestTimeout(f"the request's body came too slowly, or not at all, for {limits.body_timeout_s:g} s"))

    def _has_stalled(self, now_s: float, limit_s: float, *progress: object) -> bool:
        if progress != self._progress:
            self._progress, self._progress_at_s = progress, now_s
        return now_s - self._progress_at_s >= limit_s

    # Answering

    async def _serve(self) -> None:
        try:
            keep_alive = True
            while keep_alive and not self._server.is_draining:
                item, keep_alive, held_bytes = await self._next()
                self._is_answering = True
                try:
                    answer = item if isinstance(item, HttpAnswer) else await self._server.application(item)
                finally:
                    if held_bytes:
                        self._give(held_bytes)
                keep_alive = keep_alive and not self._server.is_draining
                if isinstance(answer, HttpAnswer):
                    is_head = isinstance(item, HttpRequest) and item.method == b"HEAD"
                    del item  # with its body, which is not held while a slow client reads
                    if is_head or len(answer.body) <= UNCOUNTED_BYTES:
                        self._write(_closing(answer, keep_alive).head + (b"" if is_head else answer.body))
                    else:
                        await self._send_large(_closing(answer, keep_alive))
                else:
                    takes_chunks = isinstance(item, HttpRequest) and item.takes_chunks
                    del item
                    await self._send_stream(answer, keep_alive=keep_alive, takes_chunks=takes_chunks)
                self._is_answering = False
                if not self._writable.is_set():
                    await self._writable.wait()
            await self._close()
        except asyncio.CancelledError:
            if self._transport is not None:
                self._transport.abort()
            raise
        except Exception:
            _log.exception("an HTTP connection failed; this is a defect")
            self.abort()

    async def _close(self) -> None:
        if self._reader.has_ended and self._transport is not None:
            if self._transport.can_write_eof():  # TLS cannot
                self._transport.write_eof()
            self._lingers = True
            self._pause_as_needed()
            await asyncio.sleep(_LINGER_S)  # until the client closes: that ends this task
        if self._transport is not None:
            self._transport.close()

    async def _next(self) -> _Item:
        while not self._queue:
            if self._reader.wants_continue:
                self._continue_if_due()
            if self._is_behind:
                self._server.reads.add(self)
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        item = self._queue.popleft()
        if self._is_paused:
            self._pause_as_needed()
        return item

    def _put(self, item: HttpRequest | HttpAnswer, keep_alive: bool, held_bytes: int) -> None:
        self._taken += 1
        self._queue.append((item, keep_alive, held_bytes))
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    async def _send_large(self, answer: HttpAnswer) -> None:
        self._write(answer.head)
        body = memoryview(answer.body)
        for at in range(0, len(body), _WRITE_BYTES):
            self._write(body[at : at + _WRITE_BYTES])
            await self._writable.wait()

    async def _send_stream(self, stream: HttpStream, *, keep_alive: bool, takes_chunks: bool) -> None:
        """Send pieces as they come; Triton is not asked for more than the client takes."""
        try:
            head = stream.head if takes_chunks else without_chunks(stream.head)
            self._write(head if keep_alive else head[:-2] + b"Connection: close\r\n\r\n")
            while (piece := await stream.receive()) is not None:
                self._write(b"%x\r\n%b\r\n" % (len(piece), piece) if takes_chunks else piece)
                await self._writable.wait()
            if takes_chunks:
                self._write(b"0\r\n\r\n")
        except ControlPlaneError as exc:
            _log.info("an answer broke off: %s", exc)
            self.abort()  # without the last chunk, so that the client can tell
        finally:
            stream.close()

    def _write(self, data: bytes | memoryview) -> None:
        if self._transport is not None:
            self._transport.write(data)

    # Reading only as much as there is room for

    def _pause_as_needed(self) -> None:
        if self._transport is None:
            return
        is_refusing = self._has_refused and not self._lingers
        has_much = self._is_behind and (self._lingers or self._reader.unread_bytes > _MAX_UNREAD_BYTES)
        must_pause = is_refusing or has_much or self._waiting is not None
        if must_pause and not self._is_paused:
            self._transport.pause_reading()
        elif self._is_paused and not must_pause:
            self._transport.resume_reading()
        self._is_paused = must_pause

    def _continue_if_due(self) -> None:
        if not self._waiting and not self._queue and not self._is_answering:
            self._reader.wants_continue = False
            self._write(_CONTINUE)

    async def _wait_for_budget(self) -> None:
        try:
            while self._owed_bytes:
                size_bytes, self._owed_bytes = self._owed_bytes, 0
                await self._server.budget.take(size_bytes, self._server.limits.body_timeout_s)
                self._held_bytes += size_bytes
            self._waiting = None
            self._pause_as_needed()
            if self._reader.wants_continue:
                self._continue_if_due()
            if self._is_behind:
                self._server.reads.add(self)
        except Overloaded as exc:
            self._waiting = None
            self.refuse(exc)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
            self._owed_bytes = 0

    def _give(self, size_bytes: int) -> None:
        if size_bytes:
            self._server.budget.give(size_bytes)


def _closing(answer: HttpAnswer, keep_alive: bool) -> HttpAnswer:
    return answer if keep_alive else with_header(answer, b"Connection: close")
