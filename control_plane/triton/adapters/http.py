"""HTTP client of Triton: a connection pool of keep-alive connections, with one request at a time on each.

It is the hot path of the HTTP frontend, and therefore uses asyncio transports directly. It never retries:
whether an inference may run twice is the caller's decision.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Coroutine
from math import inf
from typing import Any, cast

from control_plane.concurrency.deadline_timer import DeadlineTimer
from control_plane.concurrency.paced_writes import PacedWriter
from control_plane.concurrency.turn_writes import TurnWrites
from control_plane.concurrency.weighted_semaphore import WeightedSemaphore
from control_plane.core.endpoints import CONTROL_FIELD, Address
from control_plane.core.errors import DeadlineExceeded, UpstreamUnavailable
from control_plane.protocols.header_forwarding import NO_FORWARDING, HeaderForwarding
from control_plane.protocols.http1 import Body, HttpAnswer, HttpRequest, upstream_pieces
from control_plane.protocols.http1_response import AnswerError, AnswerReader, ChunkedHead
from control_plane.triton.adapters.abandoned import patience_s
from control_plane.triton.adapters.connecting import LARGE_READ_BYTES, open_connection
from control_plane.triton.adapters.http_stream import TritonHttpStream
from control_plane.triton.adapters.large_json import HELD_UP_S, LARGE_JSON_BYTES, comes_to_be_parsed, has_large_json
from control_plane.triton.ports import Slot

_REPOSITORY = b"/v2/repository/"
"""Path prefix of the calls that need the control secret."""

OPENED_TOGETHER = 32
"""Connections that are opened at a time where requests need one. Triton gives each new connection to the first
of its HTTP threads that has none to take over just then: opened one by one all would share one thread, and wait
for each other's JSON to be parsed.
"""

_OPENING_S = 0.05
"""Time that a request grants the connections opened beside its own; on one machine they take a few milliseconds."""

_KEPT_FREE = 8
"""One of so many connections is not for inference: health and metadata answer whatever the models do."""


class HttpClient:
    """Connection pool that implements `triton/ports.HttpUpstream`, over TCP or a Unix socket."""

    def __init__(
        self,
        address: Address,
        *,
        max_connections: int,
        control_secret: str = "",
        tls: ssl.SSLContext | None = None,
        headers: tuple[tuple[str, str], ...] = (),
        forwarding: HeaderForwarding = NO_FORWARDING,
        opened_together: int = 1,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`headers` go with every request; `now_s` is the loop's time. Over TLS connections are opened one by one."""
        self._address = address
        self._max_connections = max_connections
        self._opened_together = 1 if tls is not None else opened_together
        self._is_opening_more = False
        self._tls = tls
        shown = "".join(f"\r\n{name}: {value}" for name, value in headers)
        self._host_field = f"{address.authority}{shown}".encode()
        self._control_field = f"\r\n{CONTROL_FIELD}: {control_secret}".encode() if control_secret else b""
        self._forwarding = forwarding
        self._now_s = now_s
        self.writes = TurnWrites()
        self._idle: list[_Connection] = []
        """The last one is next; large JSON takes the first one, and so always the same. Connections that it seems to
        hold up are put beside it: of which thread a connection is Triton does not say."""
        self._large_json = 0
        """Requests with large JSON in flight."""
        self._open: set[_Connection] = set()
        self._allowed = WeightedSemaphore(max_connections)
        self._allowed_inference = WeightedSemaphore(max(1, max_connections - max_connections // _KEPT_FREE))
        self._is_closed = False

    def send(self, request: HttpRequest, *, timeout_s: float, slot: Slot | None = None) -> Coroutine[Any, Any, HttpAnswer]:
        """Send one request and return its whole response, as `triton/ports.HttpUpstream.send` says."""
        return self._ask(request, timeout_s, slot, False)  # type: ignore[return-value]  # no stream, since it takes none

    def stream(
        self, request: HttpRequest, *, timeout_s: float, slot: Slot | None = None
    ) -> Coroutine[Any, Any, HttpAnswer | TritonHttpStream]:
        """Send one request and return its response, whole or as a stream, as
        `triton/ports.HttpUpstream.stream` says.
        """
        return self._ask(request, timeout_s, slot, True)

    async def _ask(self, request: HttpRequest, timeout_s: float, slot: Slot | None, takes_stream: bool) -> HttpAnswer | TritonHttpStream:
        # One coroutine from here to the socket: each more is passed through twice by every request.
        now = self._now_s()
        deadline = now + timeout_s
        # Permission before a connection: so there are never more connections than allowed.
        if not (self._allowed.try_acquire() if slot is None else self._allowed.try_acquire_both(self._allowed_inference)):
            await self._allow(slot is not None, deadline)
        connection: _Connection | None = None
        is_large = len(request.body) > LARGE_JSON_BYTES and has_large_json(request)
        is_beside_large = self._large_json > 0
        if is_large:
            self._large_json += 1
        try:
            if self._is_closed:
                raise UpstreamUnavailable("the connections to Triton have been closed", is_not_sent=True)
            connection = self._idle.pop(0 if is_large else -1) if self._idle else await self._connect(deadline)
            # Whether such a call may be sent was decided before: loads and unloads go through `models/model_service`.
            is_control = slot is None and request.target.startswith(_REPOSITORY)
            host = self._host_field + self._control_field if is_control else self._host_field
            pieces = upstream_pieces(request, host, self._forwarding)
            answering = connection.begin(pieces, deadline, slot=slot, takes_stream=takes_stream)
            if is_large and not (is_beside_large or connection.has_others):
                await self._open_others(connection, len(request.body), answering, deadline)
            answer = await answering
        except BaseException:
            if connection is None:
                self._disallow(slot is not None)
            elif slot is not None and connection.is_computing:
                connection.read_to_nobody(patience_s(self._now_s() - now, slot.expected_s))
            else:  # not reusable: the rest of its response may still come
                connection.close()
                self._disallow(slot is not None)
            raise
        finally:
            if is_large:
                self._large_json -= 1
        if not isinstance(answer, HttpAnswer):
            answer.timeout_s = timeout_s  # the stream gives the connection back
        elif is_large or is_beside_large:
            is_held_up = is_beside_large and self._now_s() - now > HELD_UP_S
            # Large JSON that is in flight comes back to the first place; where none is, one that was late, perhaps for another
            # reason, must not take it.
            self._give_back(connection, at=0 if is_large else int(not self._large_json) if is_held_up else None)
        else:
            self._give_back(connection)
        return answer

    async def close(self) -> None:
        """Close every connection; requests in flight, and those that wait for a connection, fail with
        UpstreamUnavailable.
        """
        self._is_closed = True
        for connection in tuple(self._open):
            connection.close()

    async def _allow(self, is_inference: bool, deadline: float) -> None:
        """Wait until one more connection may be used. Raises DeadlineExceeded."""
        try:
            if is_inference:
                await self._allowed_inference.acquire(deadline_s=deadline)
            try:
                await self._allowed.acquire(deadline_s=deadline)
            except BaseException:
                if is_inference:
                    self._allowed_inference.release()
                raise
        except TimeoutError as exc:
            raise DeadlineExceeded("all connections to Triton were busy until the request's deadline") from exc

    def _disallow(self, is_inference: bool) -> None:
        if is_inference:
            self._allowed.release_both(self._allowed_inference)
        else:
            self._allowed.release()

    def _give_back(self, connection: _Connection, *, at: int | None = None) -> None:
        """Put a connection where it is taken next, or `at` a place far from there; the first one is that of large JSON."""
        if not connection.is_reusable:
            connection.close()
        elif at is None:
            self._idle.append(connection)
        else:
            self._idle.insert(at, connection)
        if connection.slot is not None:
            self._allowed.release_both(self._allowed_inference)
        else:
            self._allowed.release()

    async def _connect(self, deadline: float) -> _Connection:
        """Open a connection. Raises UpstreamUnavailable."""
        try:
            async with asyncio.timeout_at(deadline):
                connection = await open_connection(lambda: _Connection(self), self._address, self._tls)
        except OSError as exc:  # TimeoutError is one too
            reason = f"cannot connect to Triton at {self._address}: {exc or 'timed out'}"
            raise UpstreamUnavailable(reason, is_not_sent=True) from exc
        self._register(connection)
        if len(self._open) > self._max_connections and self._idle:
            self._idle.pop(0).close()
        try:
            await self._open_more(deadline)
        except BaseException:
            self._keep_idle(connection)
            raise
        return connection

    async def _open_more(self, deadline: float) -> None:
        """Open as many as are opened together, for later requests; whatever fails of that is left out."""
        count = min(self._opened_together - 1, self._max_connections - len(self._open))
        if count <= 0 or self._is_opening_more or self._is_closed:
            return
        self._is_opening_more = True
        try:
            async with asyncio.timeout_at(min(deadline, self._now_s() + _OPENING_S)):
                await asyncio.gather(*(self._open_idle() for _ in range(count)), return_exceptions=True)
        except TimeoutError:
            pass
        finally:
            self._is_opening_more = False

    async def _open_others(self, connection: _Connection, body_bytes: int, answering: asyncio.Future[Any], deadline: float) -> None:
        """Open connections of other threads of Triton than this connection's: as that parses large JSON, it is not the
        first that has no other to take over. They are taken before those that were there."""
        try:
            if await comes_to_be_parsed(body_bytes, connection.is_writing, answering):
                connection.has_others = True
                await self._open_more(deadline)
        except BaseException:
            answering.cancel()  # the caller has left, and nobody else awaits it
            raise

    async def _open_idle(self) -> None:
        connection = await open_connection(lambda: _Connection(self), self._address, self._tls)
        if len(self._open) >= self._max_connections:
            connection.close()
        else:
            self._register(connection)
            self._keep_idle(connection)

    def _register(self, connection: _Connection) -> None:
        # Here and not in connection_made: if connecting is cancelled in between, uvloop closes the connection without
        # calling connection_lost, and it would stay registered.
        if connection.is_open:
            self._open.add(connection)
        if self._is_closed:
            connection.close()

    def _keep_idle(self, connection: _Connection) -> None:
        if connection.is_open and not self._is_closed:
            self._idle.append(connection)

    def _closed(self, connection: _Connection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)


class _Connection(asyncio.Protocol):
    """Keep-alive connection to Triton; `begin` is called by one caller at a time."""

    def __init__(self, pool: HttpClient) -> None:
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._unsent: Body = b""
        """A request that is written at the end of this turn of the loop."""
        self._writer: PacedWriter
        self._answer: asyncio.Future[HttpAnswer | TritonHttpStream] | None = None
        self._stream: TritonHttpStream | None = None
        self._reader = AnswerReader()
        self._takes_stream = False
        self._deadline = inf
        """Of the request in flight, in the loop's time."""
        self._timer = DeadlineTimer(self._loop)
        self.is_reusable = False
        self.slot: Slot | None = None
        """Slot of the inference request that is sent on the connection."""
        self.is_computing = False
        """Whether Triton has a request on this connection that it has not answered."""
        self.has_others = False
        """Whether connections of other threads than this one's have been opened (`_open_others`)."""

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
        is_alone = len(self._pool._open) == len(self._pool._idle) + 1
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
        self._pool._give_back(self)
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
        self._pool._closed(self)
        reason = f"Triton closed the connection before it answered{f' ({exc})' if exc else ''}"
        error = UpstreamUnavailable(reason, is_not_sent=bool(self._unsent))
        self._fail(error)
        if self._stream is not None:
            self._stream.fail(error)

    def _end_stream(self, is_whole: bool) -> None:
        self._stream = None
        self.is_reusable = is_whole and self._transport is not None and not (self._reader.closes or self._writer.left)
        self._pool._give_back(self)

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
