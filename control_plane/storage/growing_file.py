"""File that is written piece by piece, on threads, and is there whole or not at all.

Who waits for a piece may be cancelled while a thread writes it, so each method may still run when the file was given
up; it does nothing then. Used by `batches/adapters/folder_shelf` and `jobs/adapters/folder_spool`.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from threading import Lock
from typing import BinaryIO
from uuid import uuid4

from control_plane.storage.durable_files import open_private

DISK_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))
"""Error numbers of a disk, or a quota, that is full."""

_FLUSHED_BYTES = 8 << 20
"""Bytes after which what was written is flushed: one flush of all of it at the end would hold up everybody else's."""


def require_free(folder: Path, keep_bytes: int) -> None:
    """Raise OSError (ENOSPC) where fewer bytes than these are free on the folder's disk."""
    if not keep_bytes:
        return
    disk = os.statvfs(folder)
    if (free_bytes := disk.f_bavail * disk.f_frsize) < keep_bytes:
        kept = f"{keep_bytes >> 20} MiB are kept free there for results of what was accepted"
        raise OSError(errno.ENOSPC, f"{free_bytes >> 20} MiB are free on its disk, and {kept}")


class GrowingFile:
    """File under a name of its own in a folder, until it is renamed."""

    def __init__(self, folder: Path, *, keep_free_bytes: int = 0) -> None:
        """Writes fail, as on a full disk, once fewer than `keep_free_bytes` are free, which are kept for what is more important."""
        self._folder, self._keep_free_bytes = folder, keep_free_bytes
        self._path = folder / f".{uuid4().hex}"
        self._lock = Lock()
        self._file: BinaryIO | None = None
        self._unflushed_bytes = 0
        self._is_over = False

    def write(self, piece: bytes | bytearray) -> None:
        """Append a piece; the first makes the file. Raises OSError."""
        with self._lock:
            if self._is_over:
                return
            require_free(self._folder, self._keep_free_bytes)
            file = self._opened()
            file.write(piece)
            self._unflushed_bytes += len(piece)
            if self._unflushed_bytes >= _FLUSHED_BYTES:
                self._flush(file)

    def finish(self, path: Path) -> None:
        """Flush the file, and rename it to its final name. Raises OSError."""
        with self._lock:
            if self._is_over:
                return
            file = self._opened()
            self._flush(file)
            file.close()
            self._path.rename(path)
            self._is_over = True

    def discard(self) -> None:
        """Remove the file, unless it has its final name. Idempotent."""
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
            try:
                if self._file is not None:
                    self._file.close()  # writes what is still buffered, for which a full disk has no room
            finally:
                self._path.unlink(missing_ok=True)

    def _opened(self) -> BinaryIO:
        if self._file is None:
            self._file = open(self._path, "xb", opener=open_private)  # noqa: SIM115  # closed by `finish` or `discard`
        return self._file

    def _flush(self, file: BinaryIO) -> None:
        file.flush()
        os.fsync(file.fileno())
        self._unflushed_bytes = 0
