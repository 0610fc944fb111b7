"""A warm copy that is being fetched, in a folder beside its place until all of it is there and verified.

`models/ports.PartialCopy`. Its folder is named for the version of the source, so what an earlier life has brought is
gone on with only if it is of the same; and for the boot of the machine: what was written before a power cut is not
known to be on the disk.
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

from control_plane.core.errors import ModelLoadFailed, Overloaded, StoreUnavailable
from control_plane.models.domain.model_source import ModelSource, SourceFile, WarmCopy, WarmFile
from control_plane.models.ports import Stop

_log = logging.getLogger(__name__)

CHUNK_BYTES = 32 << 20
"""Read at a time, and lost at most by a break; a store divides it among streams."""

_HASH_BYTES = 1 << 20

Read = Callable[[range], Sequence[bytes]]


class DiskPartialCopy:
    """`install` puts the folder in place, with the copy's record; `tier` is what messages name."""

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
        """See `models/ports.PartialCopy.fetch`."""
        if file.path in self._digests:
            return
        path = self._folder / file.path
        with on_full_disk(self._tier):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a+b") as partial:
                digests = _Digests(file)
                self._resume(partial, file, digests, stop)
                self._bring_rest(partial, file, digests, read, stop)
                os.fsync(partial.fileno())
        self._verify(file, path, digests)

    def finish(self) -> WarmCopy:
        """See `models/ports.PartialCopy.finish`."""
        missing = [file.path for file in self._source.files if file.path not in self._digests]
        assert not missing, f"not fetched: {missing}"
        with on_full_disk(self._tier):
            files = tuple(self._as_held(file.path) for file in self._source.files)
            copy = WarmCopy(self._source.name, self._source.version, files)
            self._install(self._folder, copy)
        return copy

    def _resume(self, partial: IO[bytes], file: SourceFile, digests: _Digests, stop: Stop) -> None:
        if os.fstat(partial.fileno()).st_size > file.size:
            partial.truncate(0)
        partial.seek(0)
        while piece := partial.read(_HASH_BYTES):
            _require_going(stop)
            digests.update(piece)
        self._count(digests.count, new=False)

    def _bring_rest(self, partial: IO[bytes], file: SourceFile, digests: _Digests, read: Read, stop: Stop) -> None:
        while (there := digests.count) < file.size:
            _require_going(stop)
            for piece in read(range(there, min(there + self._chunk_bytes, file.size))):
                partial.write(piece)
                digests.update(piece)
            partial.flush()
            self._count(digests.count - there, new=True)

    def _verify(self, file: SourceFile, path: Path, digests: _Digests) -> None:
        found = digests.sha256.hexdigest()
        if file.sha256 is not None:
            if found != file.sha256:
                self._refuse(file, path, digests, f"has the SHA-256 {found}, not {file.sha256} as its source's list says")
        elif file.md5 is not None and digests.md5.hexdigest() != file.md5:
            # Some stores' etags look like an MD5 and are none (S3 with KMS): two transfers that agree are believed.
            if self._doubted.get(file.path) != found:
                self._doubted[file.path] = found
                self._refuse(file, path, digests, "is not what its etag says, if that is an MD5")
            _log.warning("%s of model %s is twice the same, and not as its etag says: taken as it is", file.path, self._source.name)
        self._digests[file.path] = found

    def _refuse(self, file: SourceFile, path: Path, digests: _Digests, reason: str) -> None:
        path.unlink()
        self._count(-digests.count, new=False)
        raise ModelLoadFailed(f"{file.path} of model {self._source.name!r} {reason}", is_passing=True)

    def _count(self, size: int, *, new: bool) -> None:
        with self._lock:
            self.done_bytes += size
            self.new_bytes += size if new else 0

    def _as_held(self, path: str) -> WarmFile:
        state = (self._folder / path).lstat()
        return WarmFile(path, state.st_size, state.st_mtime_ns, self._digests[path])


class _Digests:
    """The digests of what has come of a file so far."""

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
    """What the disk refuses in this block, mostly for want of room, is refused with the folder's name. Raises Overloaded."""
    try:
        yield
    except OSError as exc:
        raise Overloaded(f"--warm-dir {folder} cannot be written: {exc.strerror or exc}") from exc


def _require_going(stop: Stop) -> None:
    if stop.is_set():
        raise StoreUnavailable("the gateway is stopping")
