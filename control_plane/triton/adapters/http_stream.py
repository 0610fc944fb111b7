"""The body of one of Triton's chunked answers, piece by piece, with back-pressure: what nobody takes is not read.

Opened by `triton/adapters/http`, whose connection hands it what arrives.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from control_plane.core.errors import DeadlineExceeded, UpstreamUnavailable
from control_plane.protocols.http1_response import AnswerError, ChunkedHead, ChunkReader

_MAX_WAITING_BYTES = 256 * 1024
"""Of pieces that have come and were not taken, before Triton's connection is no longer read."""


class TritonHttpStream:
    """`triton/ports.HttpStream`. `release(is_whole)` gives the connection back, once."""

    timeout_s: float | None = None
    """Bounds the wait for each piece."""

    def __init__(self, head: ChunkedHead, transport: asyncio.Transport, release: Callable[[bool], None]) -> None:
        self.status = head.status
        self.head = head.head
        self._transport = transport
        self._release: Callable[[bool], None] | None = release
        self._reader = ChunkReader()
        self._pieces: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._arrival: asyncio.Future[None] | None = None
        self._failure: UpstreamUnavailable | None = None
        self._is_paused = False
        self.feed(head.rest)

    async def receive(self) -> bytes | None:
        """See `triton/ports.HttpStream.receive`; one caller at a time."""
        while not self._pieces:
            if self._failure is not None:
                raise self._failure
            if self._reader.is_done:
                return None
            await self._wait()
        piece = self._pieces.popleft()
        self._waiting_bytes -= len(piece)
        if self._is_paused and self._waiting_bytes <= _MAX_WAITING_BYTES // 2:
            self._is_paused = False
            self._transport.resume_reading()
        return piece

    def close(self) -> None:
        if self._release is not None:
            if self._is_paused:
                self._transport.resume_reading()
            release, self._release = self._release, None
            release(self._reader.is_done and self._failure is None)

    def feed(self, data: bytes) -> None:
        """Take what arrived."""
        try:
            pieces = self._reader.feed(data)
        except AnswerError as exc:
            self._failure = UpstreamUnavailable(f"Triton's answer cannot be read: {exc}")
            self._wake()
            return
        self._pieces.extend(pieces)
        self._waiting_bytes += sum(map(len, pieces))
        if self._waiting_bytes > _MAX_WAITING_BYTES and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake()

    def fail(self, error: UpstreamUnavailable) -> None:
        """Nothing more comes: whoever receives learns it after the pieces that have come."""
        if not self._reader.is_done and self._failure is None:
            self._failure = error
        self._wake()

    async def _wait(self) -> None:
        self._arrival = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self.timeout_s):
                await self._arrival
        except TimeoutError as exc:
            raise DeadlineExceeded("Triton sent no further piece of its answer within the request's deadline") from exc

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)
