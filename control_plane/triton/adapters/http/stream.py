"""Body of a chunked response of Triton, received piece by piece with backpressure: what the caller does not
take is not read.

Opened by `triton/adapters/http/client`, whose connection feeds it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from control_plane.core.errors import DeadlineExceeded, UpstreamUnavailable
from control_plane.protocols.http1_response import AnswerError, ChunkedHead, ChunkReader

_MAX_WAITING_BYTES = 256 * 1024
"""Bytes of pieces that were not taken, above which reading from Triton's connection is paused."""


class TritonHttpStream:
    """Chunked response; implements `triton/ports.HttpStream`. `release(is_whole)` is called once, and gives
    the connection back.
    """

    timeout_s: float | None = None
    """Time limit for each piece."""

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
        self._loop = asyncio.get_running_loop()
        self.feed(head.rest)

    async def receive(self) -> bytes | None:
        """Return the next piece, as `triton/ports.HttpStream.receive` says; one caller at a time."""
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
        """Decode bytes that have arrived, and pause the connection if too many of them wait."""
        self.heard_s = self._loop.time()
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
        """Note that nothing more comes; `receive` raises the error after the pieces that have come."""
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
