"""Folder of the warm tier: implements `models/ports.WarmTier`. One process owns it, by a file lock that ends
with the process.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO

from control_plane.core.errors import StartupError
from control_plane.core.model import MODEL_NAME
from control_plane.models.adapters.placed_tree import remove
from control_plane.models.adapters.warm_tier.partial import CHUNK_BYTES, DiskPartialCopy, on_full_disk
from control_plane.models.domain.digest_lists import read_copy, write_copy
from control_plane.models.domain.model_source import ModelSource, WarmCopy, WarmFile
from control_plane.models.ports import Stop
from control_plane.storage.durable_files import flush_to_disk

_log = logging.getLogger(__name__)

_OWN = ".tidegate"
_HASH_BYTES = 1 << 20
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class DiskWarmTier:
    """Warm tier in a folder. `max_bytes` is for its caller, which evicts; the tier itself does not enforce
    it.
    """

    def __init__(self, folder: Path, *, max_bytes: int, chunk_bytes: int = CHUNK_BYTES) -> None:
        """Write nothing yet; `open` takes the folder over."""
        self.folder = folder.absolute()
        self.max_bytes = max_bytes
        self._chunk_bytes = chunk_bytes
        self._own = self.folder / _OWN
        self._lock: IO[str] | None = None
        self._trashed = 0

    def open(self) -> list[WarmCopy]:
        """Take the folder over, as `models/ports.WarmTier.open` says.

        Copies of an earlier process are kept if their files have the recorded sizes and times; the others are
        removed.
        """
        try:
            self._take()
            shutil.rmtree(self._own / "trash", ignore_errors=True)
            for each in ("copies", "partial", "trash"):
                (self._own / each).mkdir(exist_ok=True)
            copies = self._adopt_copies()
        except OSError as exc:
            raise StartupError(f"--warm-dir {self.folder} cannot be written: {exc.strerror or exc}; choose another") from exc
        self._refuse_others({copy.name for copy in copies})
        return copies

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def path(self, name: str) -> Path:
        """Return the folder of a model's copy."""
        return self.folder / name

    def use(self, copy: WarmCopy) -> bool:
        """Record a use, as `models/ports.WarmTier.use` says."""
        if not self._is_as_written(copy):
            return False
        os.utime(self._record(copy.name))  # the records' times are the order of use, which the next process reads
        return True

    def is_sound(self, copy: WarmCopy, stop: Stop) -> bool:
        """Verify a copy's digests, as `models/ports.WarmTier.is_sound` says."""
        try:
            return all(_sha256(self.path(copy.name) / file.path, stop) == file.sha256 for file in copy.files)
        except OSError:
            return False

    def start_fetch(self, source: ModelSource) -> DiskPartialCopy:
        """Start or resume a fetch, as `models/ports.WarmTier.start_fetch` says; partial copies of other versions
        are removed.
        """
        above = self._own / "partial" / source.name
        wanted = above / f"{source.version[:24]}-{_boot()}"
        with on_full_disk(self.folder):
            for other in above.iterdir() if above.is_dir() else ():
                if other != wanted:
                    remove(other)
        return DiskPartialCopy(wanted, source, self._install, self.folder, chunk_bytes=self._chunk_bytes)

    def remove(self, name: str) -> None:
        """Remove a copy, as `models/ports.WarmTier.remove` says."""
        self._throw_away(self.path(name))
        self._record(name).unlink(missing_ok=True)

    def partial_bytes(self, but: Collection[str]) -> int:
        """Return the bytes of abandoned partial copies, as `models/ports.WarmTier.partial_bytes` says."""
        return sum(_size(path) for left in self._partials(but) for path in left.rglob("*"))

    def drop_partials(self, but: Collection[str]) -> None:
        """Remove all partial copies but those of the models in `but`."""
        for left in self._partials(but):
            remove(left)

    def drop_partial(self, name: str) -> None:
        """Remove the partial copy of a model."""
        remove(self._own / "partial" / name)

    def _partials(self, but: Collection[str]) -> Iterator[Path]:
        return (left for left in (self._own / "partial").iterdir() if left.name not in but)

    def _take(self) -> None:
        """Lock the folder for this process; the kernel drops the lock when the process ends. Raises
        StartupError, OSError.
        """
        self._own.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (self._own / "lock").open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            lock.seek(0)
            pid = lock.read().strip()
            lock.close()
            raise StartupError(f"--warm-dir {self.folder} is in use by tidegate with pid {pid}; stop it or choose another") from exc
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        self._lock = lock

    def _adopt_copies(self) -> list[WarmCopy]:
        records = sorted((self._own / "copies").iterdir(), key=lambda record: record.stat().st_mtime_ns)
        found = {record: self._adopted(record) for record in records}
        for record in (record for record, copy in found.items() if copy is None):
            _log.warning("the warm copy of model %s is not as it was written, and is removed", record.stem)
            self.remove(record.stem)
        return [copy for copy in found.values() if copy is not None]

    def _refuse_others(self, known: set[str]) -> None:
        """Raise StartupError if the folder contains anything that no gateway has put there: it must never be
        removed as a copy.
        """
        for entry in self.folder.iterdir():
            if entry.name != _OWN and entry.name not in known:
                self.close()
                raise StartupError(f"--warm-dir {self.folder} holds {entry.name!r}, which is no warm copy; choose an empty folder")

    def _adopted(self, record: Path) -> WarmCopy | None:
        try:
            copy = read_copy(record.read_bytes())
        except ValueError:
            return None
        is_own = record == self._record(copy.name) and MODEL_NAME.fullmatch(copy.name) is not None
        return copy if is_own and self._is_as_written(copy) else None

    def _is_as_written(self, copy: WarmCopy) -> bool:
        folder = self.path(copy.name)
        try:
            if folder.is_symlink() or not folder.is_dir():
                return False
            present = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()}
            return present == {file.path for file in copy.files} and all(_is_as_written(folder / file.path, file) for file in copy.files)
        except OSError:
            return False

    def _install(self, partial: Path, copy: WarmCopy) -> None:
        """Move a finished copy to its place, durably.

        The record is written before the folder is moved: a record without its folder is removed at the next
        start, while a folder without a record would look like somebody else's.
        """
        # The files themselves were synced as they were fetched; their names are in the folders, which must be
        # synced, too.
        for folder in (partial, *(path for path in partial.rglob("*") if path.is_dir())):
            flush_to_disk(folder)
        self.remove(copy.name)
        # Written elsewhere and renamed, so that a record is never half written.
        written = self._own / "trash" / f"{copy.name}.json"
        with written.open("wb") as record:
            record.write(write_copy(copy))
            record.flush()
            os.fsync(record.fileno())
        written.rename(self._record(copy.name))
        partial.rename(self.path(copy.name))
        flush_to_disk(self.folder)
        remove(partial.parent)

    def _record(self, name: str) -> Path:
        return self._own / "copies" / f"{name}.json"

    def _throw_away(self, path: Path) -> None:
        """Remove a folder in two steps: a rename, which is atomic, and then the slow removal of what nobody
        sees any more.
        """
        self._trashed += 1
        trash = self._own / "trash" / f"{path.name}.{self._trashed}"
        try:
            path.rename(trash)
        except FileNotFoundError:
            return
        remove(trash)


def _is_as_written(path: Path, file: WarmFile) -> bool:
    state = path.lstat()
    return stat.S_ISREG(state.st_mode) and (state.st_size, state.st_mtime_ns) == (file.size, file.mtime_ns)


def _sha256(path: Path, stop: Stop) -> str | None:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_HASH_BYTES):
            if stop.is_set():
                return None
            digest.update(piece)
    return digest.hexdigest()


def _size(path: Path) -> int:
    try:
        state = path.lstat()
    except FileNotFoundError:
        return 0
    return state.st_size if stat.S_ISREG(state.st_mode) else 0


def _boot() -> str:
    try:
        return _BOOT_ID.read_text()[:8]
    except OSError:
        return "unknown"
