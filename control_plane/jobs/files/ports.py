"""Port of the folders and object stores that have jobs' input and output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class FileVersion:
    """Version of a file: one that is changed is another, as far as its store can tell."""

    size_bytes: int
    mark: str


class FileStore(Protocol):
    """Folder or object store with files. Each method raises StoreUnavailable when it cannot be reached in time."""

    async def version(self, path: Sequence[str]) -> FileVersion:
        """Return the version that a file is in now. Raises NoSuchFile."""

    async def read(self, path: Sequence[str], *, start: int, most: int) -> bytes:
        """Return `most` bytes of a file from `start` on, of which there is at least one; fewer at its end. Raises NoSuchFile."""

    async def write(self, path: Sequence[str], content: bytes) -> None:
        """Write a file whole, over one that is there; nobody sees a part of it. Folders are made."""

    async def sweep(self, before_s: float) -> None:
        """Remove what processes have left unfinished that were killed before this time, in seconds since 1970."""

    async def close(self) -> None: ...


class NoSuchFile(Exception):
    """There is no such file, or what is there is none, or is not within the store."""
