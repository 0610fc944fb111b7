"""Files of callers in a folder of this machine; implements `files/ports.FileStore`.

Each part of a path is opened from the one before, and none may be a symbolic link: so nobody who can write into the folder
leads the gateway out of it, also not between a check and its use.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from control_plane.core.errors import StoreUnavailable
from control_plane.jobs.files.ports import FileVersion, NoSuchFile

T = TypeVar("T")

_THREADS = 4
_PARTIAL = re.compile(r"\.[0-9a-f]{32}\.partial")
"""Name of a file until it is whole."""
_WRONG_NAME = {errno.ELOOP: "symbolic links are not followed", errno.ENAMETOOLONG: "a part of its name is too long"}
"""What is wrong with a name by the error that it leads to, and would lead to again."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class FolderFiles:
    """File store in a folder of this machine, on threads of its own."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="job-files")

    async def version(self, path: Sequence[str]) -> FileVersion:
        return await self._run(partial(self._version, path), is_new=False)

    async def read(self, path: Sequence[str], *, start: int, most: int) -> bytes:
        return await self._run(partial(self._content, path, start, most), is_new=False)

    async def write(self, path: Sequence[str], content: bytes) -> None:
        await self._run(partial(self._write, path, content), is_new=True)

    async def sweep(self, before_s: float) -> None:
        await self._run(partial(self._sweep, before_s), is_new=True)

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, work: Callable[[], T], *, is_new: bool) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError) as exc:
            raise NoSuchFile("it cannot be written there" if is_new else "there is no such file") from exc
        except OSError as exc:
            if exc.errno in _WRONG_NAME:
                raise NoSuchFile(_WRONG_NAME[exc.errno]) from exc
            raise StoreUnavailable(f"the folder of files cannot be used: {exc.strerror}") from exc

    def _version(self, path: Sequence[str]) -> FileVersion:
        with self._folder(path[:-1]) as folder, _opened(path[-1], _FILE, folder) as file:
            found = _regular(file)
            return FileVersion(found.st_size, f"{found.st_ino} {found.st_mtime_ns} {found.st_ctime_ns}")

    def _content(self, path: Sequence[str], start: int, most: int) -> bytes:
        with self._folder(path[:-1]) as folder, _opened(path[-1], _FILE, folder) as file:
            _regular(file)
            with os.fdopen(os.dup(file), "rb") as content:
                content.seek(start)
                return content.read(most)

    def _write(self, path: Sequence[str], content: bytes) -> None:
        with self._folder(path[:-1], makes=True) as folder:
            partial_name = f".{uuid4().hex}.partial"
            try:
                with _opened(partial_name, _NEW, folder) as file, os.fdopen(os.dup(file), "wb") as writing:
                    writing.write(content)
                    writing.flush()
                    os.fsync(file)
                os.rename(partial_name, path[-1], src_dir_fd=folder, dst_dir_fd=folder)
                os.fsync(folder)
            except BaseException:
                with suppress(OSError):
                    os.unlink(partial_name, dir_fd=folder)
                raise

    def _sweep(self, before_s: float) -> None:
        for _, _, names, folder in os.fwalk(self._root):  # which follows no links
            for name in names:
                with suppress(FileNotFoundError):  # another process sweeps, too
                    if _PARTIAL.fullmatch(name) and os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime < before_s:
                        os.unlink(name, dir_fd=folder)

    @contextmanager
    def _folder(self, names: Sequence[str], *, makes: bool = False) -> Iterator[int]:
        """Open a folder below the root, one part after the other."""
        at = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # the root itself is the administrator's
        try:
            for name in names:
                if makes:
                    with suppress(FileExistsError):
                        os.mkdir(name, 0o755, dir_fd=at)
                below = os.open(name, _FOLDER, dir_fd=at)
                os.close(at)
                at = below
            yield at
        finally:
            os.close(at)


@contextmanager
def _opened(name: str, flags: int, folder: int) -> Iterator[int]:
    file = os.open(name, flags, 0o644, dir_fd=folder)
    try:
        yield file
    finally:
        os.close(file)


def _regular(file: int) -> os.stat_result:
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode):
        raise IsADirectoryError
    return found
