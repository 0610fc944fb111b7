"""Answers the requests of one HTTP/1.1 connection one after the other, in the order in which they came.

Run as the task of `frontends/http/connection`, which reads the requests and is the loop's `Intake`. Pipelined requests wait there
until the one before them is answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any, Protocol

from control_plane.core.errors import ControlPlaneError
from control_plane.frontends.common.body_budget import UNCOUNTED_BYTES
from control_plane.frontends.common.read_scheduler import MOST_BEGUN
from control_plane.frontends.http.answers.streams import error_event, forward
from control_plane.frontends.http.answers.writer import AnswerWriter
from control_plane.frontends.http.connection_host import ConnectionHost
from control_plane.host.memory.large_buffers import free_in_steps
from control_plane.protocols.http1 import BodyPieces, HttpAnswer, HttpRequest
from control_plane.protocols.kserve.routes import is_openai
from control_plane.triton.ports import HttpStream

_log = logging.getLogger(__name__)

_Item = tuple[HttpRequest, HttpAnswer | None, bool, int]
"""A request; its answer, if that is a refusal, which was made already; whether the connection stays open after it; bytes
held of the budget."""

_UNPARSED = HttpRequest(b"", b"")
"""What a refusal answers: a request that has not come, or has no boundaries."""


class Intake(Protocol):
    """Port of the loop to the side of its connection that reads requests."""

    def read_on(self) -> None:
        """Go on reading: the answers that had to come first have been sent."""

    def receive(self, stream: BodyPieces) -> None:
        """Receive this body, whose request is answered from now on."""

    def cut_off(self, stream: BodyPieces) -> bool:
        """Read no more if this body, whose request has been answered, is not whole yet: its rest cannot be told from a
        request. Returns whether it was so."""

    def abort(self) -> None: ...


class AnswerLoop:
    """Queue of one connection's requests, each of which is answered completely before the next."""

    def __init__(self, server: ConnectionHost[Any], writer: AnswerWriter, intake: Intake) -> None:
        self._server = server
        self._writer = writer
        self._intake = intake
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Item] = deque()
        self._arrival: asyncio.Future[None] | None = None
        self._waits_since_s: float | None = None
        """Since when the first request of the queue waits to begin, by the loop's clock; None where it does not."""
        self._is_answering = False
        self._ended_by: ControlPlaneError | None = None
        """The error that answers the request in flight, whose work has been cancelled."""
        self.is_busy = False
        """Whether a request has been added that is not answered yet, in the queue or out of it (`_is_answering`)."""
        self.is_leaving = False
        """Whether the loop ends after the answer it is at; set by the connection in a drain."""

    def add(self, request: HttpRequest, *, keep_alive: bool, held_bytes: int, made: HttpAnswer | None = None) -> None:
        """Queue a request, `made` being its answer if there is one; the loop gives back what is held for it of the budget."""
        self.is_busy = True
        self._queue.append((request, made, keep_alive, held_bytes))
        if self._arrival is None or self._arrival.done():
            return
        if len(self._server.connected) > MOST_BEGUN:
            if not self._server.reads.begin(self):
                self._waits_since_s = self._loop.time()
        else:  # so few cannot be too many at once: each connection has one
            self._arrival.set_result(None)

    def begin(self) -> None:
        """See `read_scheduler.WaitingRequest`."""
        if self._arrival is not None and not self._arrival.done():
            if self._waits_since_s is not None:
                self._queue[0][0].waited_s, self._waits_since_s = self._loop.time() - self._waits_since_s, None
            self._arrival.set_result(None)

    def add_refusal(self, refusal: HttpAnswer) -> None:
        """Queue the last answer of the connection."""
        self.add(_UNPARSED, keep_alive=False, held_bytes=0, made=refusal)

    def drop(self) -> None:
        """Forget the queue, as the connection is lost; whoever has started `run` cancels it."""
        for _, _, _, held_bytes in self._queue:
            self._server.budget.release(held_bytes)
        self._queue.clear()

    def end_request(self, error: ControlPlaneError, task: asyncio.Task[None]) -> bool:
        """Cancel the work for the request in flight, in this task, and answer it with `error`. False: none is in flight."""
        if self._is_answering:
            # Before the cancellation: `run` tells by it that the client is still there, and is to be answered.
            self._ended_by = error
            task.cancel(error)  # for the records of the request (`inference/in_flight/running_request`)
        elif self._queue:  # it waits to begin
            request, _, _, held_bytes = self._queue[0]
            self._queue[0] = (request, self._server.render_error(error, request.target), False, held_bytes)
            return True
        return self._is_answering

    async def run(self) -> None:
        """Answer requests until the connection has to close; the caller closes it."""
        keep_alive = True
        while keep_alive and not self.is_leaving:
            while not self._queue:
                await self._next_arrival()
            request, made, keep_alive, held_bytes = self._queue.popleft()
            if request.stream is not None:
                self._intake.receive(request.stream)
            self._is_answering = True
            try:
                answer = await self._server.application(request) if made is None else made
            except asyncio.CancelledError:
                if self._ended_by is None:
                    raise
                answer = self._server.render_error(self._ended_by, request.target)
            except Exception as exc:
                answer = self._server.render_error(exc, request.target)
            finally:
                if held_bytes:
                    self._server.budget.release(held_bytes)
            keep_alive = keep_alive and not self._server.is_draining  # a drain may have begun while the answer was made
            if request.stream is not None and self._intake.cut_off(request.stream):
                keep_alive = False
            is_head, takes_chunks, target = request.method == b"HEAD", request.takes_chunks, request.target
            if isinstance(request.body, bytearray):
                buffer = [request.body]
                del request
                free_in_steps(buffer)
            else:
                del request  # frees the body, which must not stay in memory while a slow client reads
            if not isinstance(answer, HttpAnswer):
                keep_alive = await self._send_stream(answer, target, keep_alive=keep_alive, takes_chunks=takes_chunks, is_head=is_head)
            elif is_head:
                self._writer.write_head(answer, keep_alive=keep_alive)
            elif len(answer.body) > UNCOUNTED_BYTES:
                await self._writer.write_large(answer, keep_alive=keep_alive)
            elif keep_alive:
                self._writer.write_soon(answer.head + answer.body)
            else:
                self._writer.write_last(answer)
            self._is_answering, self.is_busy = False, bool(self._queue)
            # A client that pipelines requests and reads no answers has one of them here, not all.
            if not self._writer.may_write:
                await self._writer.writable.wait()

    def _next_arrival(self) -> asyncio.Future[None]:
        """Let the reader go on, as the queue is empty; the future ends when a request has come."""
        self._intake.read_on()
        self._arrival = self._loop.create_future()
        return self._arrival

    async def _send_stream(self, stream: HttpStream, target: bytes, *, keep_alive: bool, takes_chunks: bool, is_head: bool) -> bool:
        """Forward a streamed answer; break it off, with an error where it takes one, if it cannot come to its end. Returns whether
        the connection stays."""
        try:
            await forward(
                stream, self._writer.write, self._writer.writable, keep_alive=keep_alive, takes_chunks=takes_chunks, is_head=is_head
            )
        except ControlPlaneError as exc:
            _log.info("an answer broke off: %s", exc)
            event = error_event(stream.head, exc, target)
            # Without the last chunk, by which the client knows that the answer is incomplete; OpenAI's clients know it by the event.
            if event is None:
                self._intake.abort()
            elif is_openai(target):
                self._write_end(event, takes_chunks)
            else:
                self._writer.write(b"%x\r\n%b\r\n" % (len(event), event) if takes_chunks else event)
                keep_alive = False
        except asyncio.CancelledError:
            event = None if self._ended_by is None else error_event(stream.head, self._ended_by, target)
            if event is None:
                raise
            self._write_end(event, takes_chunks)
        finally:
            stream.close()
        return keep_alive

    def _write_end(self, event: bytes, takes_chunks: bool) -> None:
        """Write the last event of a stream that ends before its time."""
        self._writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event) if takes_chunks else event)
