"""Port of the folders and object stores that have jobs' input and output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class FileStore(Protocol):
    """Folder or object store with files. Each method raises StoreUnavailable when it cannot be reached in time."""

    async def size(self, path: Sequence[str]) -> int:
        """Return the size of a file in bytes. Raises NoSuchFile."""

    async def read(self, path: Sequence[str], *, most: int) -> bytes:
        """Return the beginning of a file, `most` bytes of it. Raises NoSuchFile."""

    async def write(self, path: Sequence[str], content: bytes) -> None:
        """Write a file whole, over one that is there; nobody sees a part of it. Folders are made."""

    async def sweep(self, before_s: float) -> None:
        """Remove what processes have left unfinished that were killed before this time, in seconds since 1970."""

    async def close(self) -> None: ...


class NoSuchFile(Exception):
    """There is no such file, or what is there is none, or is not within the store."""
