"""Spool in a folder; implements `jobs/ports.Spool`.

`<folder>/<two digits>/<job id>/<name>`: a file is written under another name, flushed to disk and renamed, and the
folders that lead to it are flushed too. So a name that is there means the whole file, after a power cut as well. A
job's folder is only ever written by who accepts the job and by its runners, under names of their own.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from hashlib import file_digest, sha256
from pathlib import Path
from typing import BinaryIO, TypeVar
from uuid import uuid4

from control_plane.core.errors import StartupError, StoreUnavailable
from control_plane.jobs.domain.job import Blob
from control_plane.jobs.ports import SpoolDamaged
from control_plane.storage.durable_files import flush_to_disk, open_private
from control_plane.storage.file_pieces import FilePieces
from control_plane.storage.growing_file import DISK_FULL, GrowingFile, require_free

_THREADS = 4
_JOB = re.compile(r"job-[0-9a-f]{32}")
_PART = re.compile(r"[0-9a-f]{2}")
_NAME = re.compile(r"[a-z0-9-]{1,60}")

T = TypeVar("T")


class FolderSpool:
    """Spool in a folder, on threads of its own; the folder is made where it is missing."""

    def __init__(self, folder: Path, *, keep_free_bytes: int = 0) -> None:
        """New work is taken only while so many bytes are free. Raises StartupError: the folder cannot be made."""
        self._folder = folder
        self._keep_free_bytes = keep_free_bytes
        self._flushed: set[Path] = set()
        """Folders of jobs' folders whose own entries this process knows to be on the disk."""
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as exc:
            raise StartupError(f"the spool {folder} cannot be used: {exc}; choose another with TIDEGATE_JOBS_SPOOL") from exc
        self._threads = ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="spool")

    async def write(self, job_id: str, name: str, pieces: Sequence[bytes | bytearray], *, is_new: bool = False) -> Blob:
        def write() -> Blob:
            if is_new:
                require_free(self._folder, self._keep_free_bytes)
            return _write(self._folder_of(job_id), name, pieces, self._flushed)

        return await self._run(write)

    async def receive(self, job_id: str, name: str, pieces: AsyncIterator[bytes | bytearray]) -> Blob:
        folder, digest, size_bytes = self._folder_of(job_id), sha256(), 0
        final, growing = folder / _checked(_NAME, name), GrowingFile(folder, keep_free_bytes=self._keep_free_bytes)

        def write(piece: bytes | bytearray) -> None:
            growing.write(piece)
            digest.update(piece)

        made = await self._run(partial(_make_folder, folder, self._flushed))
        try:
            async for piece in pieces:
                size_bytes += len(piece)
                await self._run(partial(write, piece))
            await self._run(partial(_finish, growing, final, made, self._flushed))
        except BaseException:
            with suppress(StoreUnavailable):  # of what is left the sweeper takes care
                await self._run(partial(_discard, growing, folder))
            raise
        return Blob(f"{job_id}/{name}", size_bytes, digest.hexdigest())

    async def read(self, blob: Blob) -> bytes:
        if blob.data is not None:
            return _intact(blob.data, blob)
        job_id, _, name = blob.name.partition("/")
        return await self._run(lambda: _read(self._folder_of(job_id) / _checked(_NAME, name), blob))

    async def open(self, blob: Blob) -> FilePieces:
        job_id, _, name = blob.name.partition("/")
        file = await self._run(lambda: _opened(self._folder_of(job_id) / _checked(_NAME, name), blob))
        return FilePieces(file, self._run, self._threads)

    async def prune(self, job_id: str, *, keep: str = "") -> None:
        await self._run(lambda: _prune(self._folder_of(job_id), keep.partition("/")[2]))

    async def parts(self) -> list[str]:
        return await self._run(lambda: sorted(path.name for path in self._folder.iterdir() if _PART.fullmatch(path.name)))

    async def jobs(self, part: str, *, before_s: float) -> list[str]:
        return await self._run(lambda: _jobs(self._folder / _checked(_PART, part), before_s))

    async def close(self) -> None:
        self._threads.shutdown(wait=False)

    def _folder_of(self, job_id: str) -> Path:
        return self._folder / _checked(_JOB, job_id)[-2:] / job_id

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except OSError as exc:
            raise StoreUnavailable(f"the spool of jobs: {exc.strerror}", is_full=exc.errno in DISK_FULL) from exc


def _checked(pattern: re.Pattern[str], text: str) -> str:
    """Return a part of a path that cannot lead out of the spool. Raises ValueError."""
    if not pattern.fullmatch(text):
        raise ValueError(f"{text!r} is no name in the spool")
    return text


def _write(folder: Path, name: str, pieces: Sequence[bytes | bytearray], flushed: set[Path]) -> Blob:
    made = _make_folder(folder, flushed)
    final = folder / _checked(_NAME, name)
    partial = folder / f".{uuid4().hex}"
    digest, size_bytes = sha256(), 0
    try:
        with open(partial, "xb", opener=open_private) as file:
            for piece in pieces:
                digest.update(piece)
                size_bytes += len(piece)
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(final)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    _flush_folders(folder, made, flushed)
    return Blob(f"{folder.name}/{name}", size_bytes, digest.hexdigest())


def _finish(growing: GrowingFile, final: Path, made: list[Path], flushed: set[Path]) -> None:
    growing.finish(final)
    _flush_folders(final.parent, made, flushed)


def _discard(growing: GrowingFile, folder: Path) -> None:
    """Remove what was written, and the job's folder if there is nothing else in it."""
    with suppress(OSError):  # the disk may be full
        growing.discard()
    with suppress(OSError):
        folder.rmdir()


def _make_folder(folder: Path, flushed: set[Path]) -> list[Path]:
    """Make a job's folder, and those that it is in where there is none yet; return what was missing, or may have been made
    by another that has not flushed it, so that the folders above are flushed before the job is accepted.
    """
    made = []
    for each in (folder.parent.parent, folder.parent, folder):
        try:
            each.mkdir(mode=0o700)
        except FileExistsError:
            if each != folder.parent or each in flushed:
                continue
        made.append(each)
    return made


def _read(path: Path, blob: Blob) -> bytes:
    try:
        return _intact(path.read_bytes(), blob)
    except FileNotFoundError:
        raise _gone(blob) from None


def _opened(path: Path, blob: Blob) -> BinaryIO:
    try:
        file = open(path, "rb")  # noqa: SIM115  # closed by its reader
    except FileNotFoundError:
        raise _gone(blob) from None
    try:
        if file_digest(file, "sha256").hexdigest() != blob.sha256:
            raise _other(blob)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


def _intact(found: bytes, blob: Blob) -> bytes:
    if len(found) != blob.size_bytes or sha256(found).hexdigest() != blob.sha256:
        raise _other(blob)
    return found


def _gone(blob: Blob) -> SpoolDamaged:
    return SpoolDamaged(f"{blob.name} is not in the spool")


def _other(blob: Blob) -> SpoolDamaged:
    return SpoolDamaged(f"{blob.name} is not what was written: its digest differs")


def _prune(folder: Path, keep: str) -> None:
    if not keep:
        with suppress(FileNotFoundError):
            shutil.rmtree(folder)
        return
    with suppress(FileNotFoundError):
        for path in folder.iterdir():
            if path.name != keep:
                path.unlink(missing_ok=True)


def _jobs(folder: Path, before_s: float) -> list[str]:
    found = []
    for path in folder.glob("job-*"):
        with suppress(FileNotFoundError):  # one that is being removed
            # A folder's own time stands still while a body only grows the file in it.
            if _JOB.fullmatch(path.name) and all(each.stat().st_mtime < before_s for each in (path, *path.iterdir())):
                found.append(path.name)
    return sorted(found)


def _flush_folders(folder: Path, made: list[Path], flushed: set[Path]) -> None:
    """Flush a job's folder, and those in which folders were made that lead to it."""
    for each in (folder, *(each.parent for each in made)):
        flush_to_disk(each)
    flushed.add(folder.parent)
