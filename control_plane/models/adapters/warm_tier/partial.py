"""Partial copy in the warm tier: a copy that is being fetched, in a folder of its own until it is complete
and verified.

Implements `models/ports.PartialCopy`. The folder is named after the version of the source, so that a fetch
resumes only what is of the same version; and after the boot of the machine, since what was written before a
power cut may not be on the disk.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from control_plane.core.errors import ModelLoadFailed, StoreUnavailable
from control_plane.models.adapters.stopping import require_going
from control_plane.models.domain.model_source import ModelSource, SourceFile, WarmCopy, WarmFile
from control_plane.models.ports import Stop

_log = logging.getLogger(__name__)

CHUNK_BYTES = 32 << 20
"""Bytes of one read, which are lost at most if the connection breaks; a store divides a read among several
streams.
"""

_HASH_BYTES = 1 << 20

Read = Callable[[range], Sequence[bytes]]


class DiskPartialCopy:
    """Partial copy on disk; `install` moves the finished folder to its place and records it, `tier` is the
    folder in messages.
    """

    def __init__(
        self, folder: Path, source: ModelSource, install: Callable[[Path, WarmCopy], None], tier: Path, *, chunk_bytes: int
    ) -> None:
        self._folder = folder
        self._tier = tier
        self._chunk_bytes = chunk_bytes
        self._source = source
        self._install = install
        self._lock = threading.Lock()  # files are fetched by several threads
        self._digests: dict[str, str] = {}
        self._doubted: dict[str, str] = {}
        self.new_bytes = 0
        self.done_bytes = 0
        with on_full_disk(tier):
            folder.mkdir(parents=True, exist_ok=True)

    def fetch(self, file: SourceFile, read: Read, stop: Stop) -> None:
        """Fetch and verify a file, as `models/ports.PartialCopy.fetch` says."""
        if file.path in self._digests:
            return
        path = self._folder / file.path
        with on_full_disk(self._tier):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a+b") as partial:
                digests = _Digests(file)
                self._resume(partial, file, digests, stop)
                self._fetch_rest(partial, file, digests, read, stop)
                os.fsync(partial.fileno())
        self._verify(file, path, digests)

    def finish(self) -> WarmCopy:
        """Install the complete copy, as `models/ports.PartialCopy.finish` says."""
        missing = [file.path for file in self._source.files if file.path not in self._digests]
        assert not missing, f"not fetched: {missing}"
        with on_full_disk(self._tier):
            files = tuple(self._as_held(file.path) for file in self._source.files)
            copy = WarmCopy(self._source.name, self._source.version, files)
            self._install(self._folder, copy)
        return copy

    def _resume(self, partial: IO[bytes], file: SourceFile, digests: _Digests, stop: Stop) -> None:
        """Digest what an earlier attempt has left of the file; more than the file has cannot be of it, and is
        dropped.
        """
        if os.fstat(partial.fileno()).st_size > file.size:
            partial.truncate(0)
        partial.seek(0)
        while piece := partial.read(_HASH_BYTES):
            require_going(stop)
            digests.update(piece)
        self._count(digests.count, new=False)

    def _fetch_rest(self, partial: IO[bytes], file: SourceFile, digests: _Digests, read: Read, stop: Stop) -> None:
        while (there := digests.count) < file.size:
            require_going(stop)
            for piece in read(range(there, min(there + self._chunk_bytes, file.size))):
                partial.write(piece)
                digests.update(piece)
            partial.flush()
            self._count(digests.count - there, new=True)

    def _verify(self, file: SourceFile, path: Path, digests: _Digests) -> None:
        """Compare a fetched file with its SHA-256, or else its MD5, where either is known. Raises
        ModelLoadFailed.
        """
        found = digests.sha256.hexdigest()
        if file.sha256 is not None:
            if found != file.sha256:
                self._refuse(file, path, digests, f"has the SHA-256 {found}, not {file.sha256} as its source's list says")
        elif file.md5 is not None and digests.md5.hexdigest() != file.md5:
            # Some stores' etags look like an MD5 and are none (S3 with KMS): if a second transfer agrees with
            # the first, the file is accepted.
            if self._doubted.get(file.path) != found:
                self._doubted[file.path] = found
                self._refuse(file, path, digests, "is not what its etag says, if that is an MD5")
            _log.warning("%s of model %s is twice the same, and not as its etag says: taken as it is", file.path, self._source.name)
        self._digests[file.path] = found

    def _refuse(self, file: SourceFile, path: Path, digests: _Digests, reason: str) -> None:
        path.unlink()
        self._count(-digests.count, new=False)
        raise ModelLoadFailed(f"{file.path} of model {self._source.name!r} {reason}", is_transient=True)

    def _count(self, size: int, *, new: bool) -> None:
        with self._lock:
            self.done_bytes += size
            self.new_bytes += size if new else 0

    def _as_held(self, path: str) -> WarmFile:
        state = (self._folder / path).lstat()
        return WarmFile(path, state.st_size, state.st_mtime_ns, self._digests[path])


class _Digests:
    """Running digests of a file; the MD5 only where it is the only one to compare with."""

    def __init__(self, file: SourceFile) -> None:
        self.count = 0
        self.sha256 = hashlib.sha256()
        self.md5 = hashlib.md5(usedforsecurity=False)
        self._wants_md5 = file.sha256 is None and file.md5 is not None

    def update(self, piece: bytes) -> None:
        self.count += len(piece)
        self.sha256.update(piece)
        if self._wants_md5:
            self.md5.update(piece)


@contextmanager
def on_full_disk(folder: Path) -> Iterator[None]:
    """Translate errors of the disk in this context, mostly a full disk, into StoreUnavailable with
    `is_full` and the name of the folder.
    """
    try:
        yield
    except OSError as exc:
        raise StoreUnavailable(f"--warm-dir {folder} cannot be written: {exc.strerror or exc}", is_full=True) from exc
