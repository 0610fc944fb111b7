"""Streams a job's large result from the spool, reading only as fast as the caller does.

A result may have hundreds of megabytes, and a caller may request it any number of times and read it slowly.
"""

from __future__ import annotations

from control_plane.jobs.ports import BlobReader
from control_plane.protocols.http1 import HttpAnswer, with_header


class ResultStream:
    """Result of a job, framed by its Content-Length: a `triton/ports.HttpStream`."""

    def __init__(self, answer: HttpAnswer, reader: BlobReader) -> None:
        """`answer` is the head with the beginning of the body, whose rest is received from `reader`."""
        self._answer = answer
        self._reader = reader
        self._has_begun = False

    @property
    def status(self) -> int:
        return self._answer.status

    @property
    def head(self) -> bytes:
        return self._answer.head

    def with_header(self, line: bytes) -> ResultStream:
        """Return the same stream with one more header line."""
        return ResultStream(with_header(self._answer, line), self._reader)

    async def receive(self) -> bytes | None:
        if not self._has_begun and self._answer.body:
            self._has_begun = True
            return bytes(self._answer.body)
        return await self._reader.receive()

    def close(self) -> None:
        self._reader.close()


async def begin_result(reader: BlobReader, status: int, head_bytes: int) -> ResultStream:
    """Read the head of a result, and stream the rest. Raises StoreUnavailable."""
    first = b""
    try:
        while len(first) < head_bytes and (piece := await reader.receive()) is not None:
            first += piece
    except BaseException:
        reader.close()
        raise
    return ResultStream(HttpAnswer(status, first[:head_bytes], first[head_bytes:]), reader)
