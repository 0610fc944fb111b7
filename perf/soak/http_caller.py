"""HTTP connections of an open loop: each has one request at a time, and an answer costs the client little."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

_MOST = 2_000
"""Connections; of one source the gateway takes 3,072."""
_KEPT = 64
"""Idle ones that are kept for the next request."""


class NoConnection(Exception):
    """All connections were in use for too long."""


class HttpCaller:
    """Pool of keep-alive connections to one gateway."""

    def __init__(self, address: str) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._idle: deque[_Connection] = deque()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._open = 0

    async def ask(self, request: bytes, *, sendable_s: float) -> bytes:
        """Return the whole answer. Raises OSError, and NoConnection after `sendable_s`; when cancelled it closes the connection."""
        connection = await self._connection(sendable_s)
        try:
            answer = await connection.ask(request)
        except BaseException:
            self._give_up(connection)
            raise
        if connection.is_last or len(self._idle) >= _KEPT:
            self._give_up(connection)
        else:
            self._idle.append(connection)
        self._wake()
        return answer

    def close(self) -> None:
        for connection in self._idle:
            connection.close()

    async def _connection(self, sendable_s: float) -> _Connection:
        until_s = asyncio.get_running_loop().time() + sendable_s
        while True:
            while self._idle:
                connection = self._idle.pop()
                if not connection.is_closed:
                    return connection
                self._open -= 1
            if self._open < _MOST:
                return await self._connect()
            await self._wait(until_s)

    async def _connect(self) -> _Connection:
        self._open += 1
        try:
            _, connection = await asyncio.get_running_loop().create_connection(_Connection, self._host, self._port)
        except BaseException:
            self._open -= 1
            self._wake()
            raise
        return connection

    async def _wait(self, until_s: float) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout_at(until_s):
                await turn
        except TimeoutError as exc:
            raise NoConnection from exc

    def _give_up(self, connection: _Connection) -> None:
        connection.close()
        self._open -= 1
        self._wake()

    def _wake(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return


class _Connection(asyncio.Protocol):
    is_closed = False
    is_last = False
    """The server closes it after this answer."""
    _answer: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport, self._loop, self._buffer = transport, asyncio.get_running_loop(), b""

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionResetError(f"the connection broke: {exc or 'closed by the server'}"))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._answer is not None and not self._answer.done() and self._is_whole():
            self._answer.set_result(self._buffer)

    async def ask(self, request: bytes) -> bytes:
        self._buffer, self._answer = b"", self._loop.create_future()
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        self.is_closed = True
        self._transport.abort()

    def _is_whole(self) -> bool:
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return False
        head = head.lower()
        self.is_last = b"\r\nconnection: close" in head
        if b"\r\ntransfer-encoding: chunked" in head:
            return body.endswith(b"0\r\n\r\n")
        return len(body) >= int(head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0])
