"""File that is sent piece by piece, on threads; used by `batches/adapters/folder_shelf` and `jobs/adapters/folder_spool`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

_PIECE_BYTES = 256 * 1024


class FilePieces:
    """Reader of one open file."""

    def __init__(self, file: BinaryIO, run: Callable[[Callable[[], bytes]], Awaitable[bytes]], threads: ThreadPoolExecutor) -> None:
        """`run` does work on one of `threads`, and raises StoreUnavailable."""
        self._file, self._run, self._threads = file, run, threads

    async def receive(self) -> bytes | None:
        """Return the next piece, None at the end. Raises StoreUnavailable."""
        return await self._run(lambda: self._file.read(_PIECE_BYTES)) or None

    def close(self) -> None:
        """Close the file on a thread: where its caller left during a read, closing waits for that read, and the disk may not answer."""
        try:
            self._threads.submit(self._file.close)
        except RuntimeError:  # the threads have ended: nothing reads any more
            self._file.close()
