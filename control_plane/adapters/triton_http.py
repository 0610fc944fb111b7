"""Triton's HTTP endpoint: a pool of keep-alive connections, one request at a time on each.

The hot path of the HTTP door, so it sits directly on asyncio transports. It never retries: whether an inference may
run twice is the caller's decision.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import cast

from control_plane.codec.http_answer import AnswerError, AnswerReader
from control_plane.codec.http_message import HttpAnswer, HttpRequest, upstream_bytes
from control_plane.domain.endpoints import authority
from control_plane.domain.errors import DeadlineExceeded, UpstreamUnavailable


class TritonHttp:
    """`ports.HttpUpstream` over TCP."""

    def __init__(self, host: str, port: int, *, max_connections: int) -> None:
        self._host = host
        self._port = port
        self._host_field = authority(host, port).encode()
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()
        self._slots = max_connections
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_closed = False

    async def send(self, request: HttpRequest, *, timeout_s: float) -> HttpAnswer:
        """Send one request and return its whole answer; see `ports.HttpUpstream.send`."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        await self._take_slot(deadline)
        connection: _Connection | None = None
        try:
            connection = self._idle.pop() if self._idle else await self._connect(deadline)
            answer = await connection.exchange(upstream_bytes(request, self._host_field), deadline)
            if connection.is_reusable:
                self._idle.append(connection)
                connection = None
            return answer
        finally:
            if connection is not None:  # its answer, or what is left of it, may still come
                connection.close()
            self._give_slot()

    async def close(self) -> None:
        """Close every connection; what is in flight or waits for one fails as unavailable."""
        self._is_closed = True
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(_closed_pool())
        for connection in tuple(self._open):
            connection.close()

    async def _take_slot(self, deadline: float) -> None:
        if self._is_closed:
            raise _closed_pool()
        if self._slots > 0:
            self._slots -= 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
        except (TimeoutError, asyncio.CancelledError) as exc:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._give_slot()
            if isinstance(exc, TimeoutError):
                raise DeadlineExceeded("all connections to Triton were busy until the request's deadline") from exc
            raise

    def _give_slot(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._slots += 1

    async def _connect(self, deadline: float) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(deadline):
                _, connection = await loop.create_connection(lambda: _Connection(self), self._host, self._port)
        except OSError as exc:  # TimeoutError is one too
            raise UpstreamUnavailable(f"cannot connect to Triton at {authority(self._host, self._port)}: {exc or 'timed out'}") from exc
        return connection

    def _opened(self, connection: _Connection) -> None:
        self._open.add(connection)
        if self._is_closed:
            connection.close()

    def _closed(self, connection: _Connection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)


def _closed_pool() -> UpstreamUnavailable:
    return UpstreamUnavailable("the connections to Triton have been closed")


class _Connection(asyncio.Protocol):
    """One connection; `exchange` is called by one caller at a time."""

    def __init__(self, pool: TritonHttp) -> None:
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[HttpAnswer] | None = None
        self._reader = AnswerReader()
        self.is_reusable = False

    async def exchange(self, payload: bytes, deadline: float) -> HttpAnswer:
        """Write the request and wait for its answer; on any exception the connection is spent."""
        if self._transport is None:
            raise UpstreamUnavailable("Triton closed the connection")
        self.is_reusable = False
        self._answer = self._loop.create_future()
        timer = self._loop.call_at(deadline, self._expire)
        try:
            self._transport.write(payload)
            return await self._answer
        finally:
            timer.cancel()
            self._answer = None

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one by behaviour, not by class
        self._pool._opened(self)

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self.close()  # nothing was asked: this connection is no longer in step
            return
        try:
            answer = self._reader.feed(data)
        except AnswerError as exc:
            self._fail(UpstreamUnavailable(f"Triton's answer cannot be read: {exc}"))
            return
        if answer is not None:
            self.is_reusable = not self._reader.closes
            self._answer.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.is_reusable = False
        self._pool._closed(self)
        self._fail(UpstreamUnavailable(f"Triton closed the connection before it answered{f' ({exc})' if exc else ''}"))

    def _expire(self) -> None:
        self._fail(DeadlineExceeded("Triton did not answer within the request's deadline"))

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
