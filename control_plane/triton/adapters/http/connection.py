"""Keep-alive connection to Triton's HTTP port, one request at a time; its pool is `triton/adapters/http/client`."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Protocol, cast

from control_plane.concurrency.deadline_timer import DeadlineTimer
from control_plane.concurrency.paced_writes import PacedWriter
from control_plane.concurrency.turn_writes import TurnWrites
from control_plane.core.errors import DeadlineExceeded, UpstreamUnavailable
from control_plane.protocols.http1 import Body, HttpAnswer
from control_plane.protocols.http1_response import AnswerError, AnswerReader, ChunkedHead
from control_plane.triton.adapters.connecting import LARGE_READ_BYTES
from control_plane.triton.adapters.http.stream import TritonHttpStream
from control_plane.triton.ports import Slot


class ConnectionPool(Protocol):
    """Port from a connection to the pool that it belongs to."""

    open: set[HttpConnection]
    idle: list[HttpConnection]
    writes: TurnWrites
    max_answer_bytes: int

    def give_back(self, connection: HttpConnection) -> None:
        """Take back a connection that was read to nobody, or whose stream has ended."""
        ...

    def forget(self, connection: HttpConnection) -> None:
        """Drop a connection that has ended."""
        ...


class HttpConnection(asyncio.Protocol):
    """Keep-alive connection to Triton; `begin` is called by one caller at a time."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._unsent: Body = b""
        """A request that is written at the end of this turn of the loop."""
        self._writer: PacedWriter
        self._answer: asyncio.Future[HttpAnswer | TritonHttpStream] | None = None
        self._stream: TritonHttpStream | None = None
        self._reader = AnswerReader(max_body_bytes=pool.max_answer_bytes)
        self._takes_stream = False
        self._deadline = inf
        """Time on the loop's clock until which the request in flight must be answered."""
        self._timer = DeadlineTimer(self._loop)
        self.is_reusable = False
        self.slot: Slot | None = None
        """Slot of the inference request that is sent on the connection."""
        self.is_computing = False
        """Whether Triton has a request on this connection that it has not answered."""
        self.has_others = False
        """Whether connections of other threads than this one's have been opened (`HttpClient._open_others`)."""

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    def begin(
        self, pieces: list[Body], deadline: float, *, slot: Slot | None, takes_stream: bool
    ) -> asyncio.Future[HttpAnswer | TritonHttpStream]:
        """Write a request; the future is its response, or the head of a stream. If it fails or is cancelled, the
        connection must be closed.
        """
        if self._transport is None:
            raise UpstreamUnavailable("Triton closed the connection", is_not_sent=True)
        self.slot, self._takes_stream = slot, takes_stream
        self.is_reusable = False
        self.is_computing = True
        self._deadline = deadline
        if deadline < self._timer.due_s:
            self._timer.cover(deadline, self._expire)
        self._answer = self._loop.create_future()
        is_alone = len(self._pool.open) == len(self._pool.idle) + 1
        if len(pieces) == 1 and not is_alone:
            self._unsent = pieces[0]
            self._pool.writes.put_off(self)
        else:
            self._writer.write(pieces)
        return self._answer

    def is_writing(self) -> bool:
        """Whether the kernel has not yet taken all of the request."""
        return self._transport is not None and (bool(self._writer.left) or self._transport.get_write_buffer_size() > 0)

    def pause_writing(self) -> None:
        self._writer.pause()

    def resume_writing(self) -> None:
        self._writer.resume()

    def flush(self) -> None:
        """See `turn_writes.Unsent`."""
        unsent, self._unsent = self._unsent, b""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(unsent)

    def read_to_nobody(self, patience_s: float) -> None:
        """Go on reading the response after its caller has left, for `patience_s` at most, and keep the
        request's slot as long.
        """
        assert self.slot is not None, "only an inference request is waited for"
        self.slot.keep()
        self._deadline = inf
        self._answer = self._loop.create_future()
        timer = self._loop.call_later(patience_s, self.close)
        self._answer.add_done_callback(lambda answer: self._end_to_nobody(answer, timer))

    def _end_to_nobody(self, answer: asyncio.Future[HttpAnswer | TritonHttpStream], timer: asyncio.TimerHandle) -> None:
        timer.cancel()
        self._answer = None
        assert self.slot is not None, "it was kept"
        slot = self.slot
        if answer.exception() is not None or not isinstance(answer.result(), HttpAnswer):
            self.is_reusable = False
        self._pool.give_back(self)
        slot.let_go()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one by behaviour, not by class
        self._writer = PacedWriter(self._transport)

    def data_received(self, data: bytes) -> None:
        """Feed the bytes to the response in progress; bytes that no request asked for end the connection."""
        if self._stream is not None:
            self._stream.feed(data)
            return
        if self._answer is None or self._answer.done():
            self.close()  # bytes without a request: the connection is out of step, and would answer the next request wrongly
            return
        try:
            answer = self._reader.feed(data)
        except AnswerError as exc:
            self.is_computing = False
            self._fail(UpstreamUnavailable(f"Triton's answer cannot be read: {exc}"))
            return
        if answer is None:
            if len(data) >= LARGE_READ_BYTES:
                self._read_later()
            return
        self.is_computing, self._deadline = False, inf
        waited, self._answer = self._answer, None  # an idle connection keeps no answer in memory
        if not isinstance(answer, ChunkedHead):
            self.is_reusable = not (self._reader.closes or self._writer.left)
            waited.set_result(answer)
        elif self._takes_stream:
            assert self._transport is not None
            self._stream = TritonHttpStream(answer, self._transport, self._end_stream)
            waited.set_result(self._stream)
        else:
            waited.set_exception(UpstreamUnavailable("Triton's answer cannot be read: it is chunked"))

    def _read_later(self) -> None:
        """Read more of a large answer in the next turn of the loop."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._writer.clear()
        self._timer.cancel()
        self.is_reusable = self.is_computing = False
        self._pool.forget(self)
        reason = f"Triton closed the connection before it answered{f' ({exc})' if exc else ''}"
        error = UpstreamUnavailable(reason, is_not_sent=bool(self._unsent))
        self._fail(error)
        if self._stream is not None:
            self._stream.fail(error)

    def _end_stream(self, is_whole: bool) -> None:
        self._stream = None
        self.is_reusable = is_whole and self._transport is not None and not (self._reader.closes or self._writer.left)
        self._pool.give_back(self)

    def _expire(self, now: float) -> float:
        """Fail the request in flight if it is due; returns its deadline otherwise (`DeadlineTimer`)."""
        if self._deadline > now:
            return self._deadline
        self._deadline = inf
        self._fail(DeadlineExceeded("Triton did not answer within the request's deadline"))
        return inf

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
