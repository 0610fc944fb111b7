"""Shelf in a folder; implements `batches/ports.Shelf`.

`<folder>/<digest of the tenant>/<id>/` is a file (`meta`, `content`) or a batch (`meta`, `input`, `cancelled`,
`ended`); `<folder>/open/<batch id>` names the tenant's folder of each batch that has not ended. A name that is there
means whole content, after a power cut as well: it is written under another name, flushed and then linked.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, TypeVar
from uuid import uuid4

import orjson

from control_plane.batches.domain.batch import Batch, BatchState, Chunk, Chunks, Ended, StoredFile
from control_plane.core.errors import StoreUnavailable
from control_plane.jobs.ports import BlobReader
from control_plane.storage.durable_files import flush_to_disk, open_private
from control_plane.storage.file_pieces import FilePieces
from control_plane.storage.growing_file import DISK_FULL, GrowingFile

_THREADS = 2
_FILE, _BATCH = re.compile(r"file-[0-9a-f]{32}"), re.compile(r"batch_[0-9a-f]{32}")

T = TypeVar("T")


class FolderShelf:
    """Shelf in a folder, on threads of its own; the folder is made when something is first kept."""

    def __init__(self, folder: Path, *, keep_free_bytes: int = 0) -> None:
        """Files of callers are taken only while so many bytes stay free, for what is written for them."""
        self._folder = folder
        self._keep_free_bytes = keep_free_bytes
        self._threads = ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="shelf")
        self._open: dict[str, Batch] = {}
        """Open batches as they were read: they never change, and each may have more than a thousand chunks."""

    async def add_file(self, file: StoredFile, pieces: AsyncIterator[bytes]) -> StoredFile:
        own = self._tenant(file.tenant) / file.id
        growing = GrowingFile(own, keep_free_bytes=0 if file.model else self._keep_free_bytes)
        size_bytes = 0
        await self.run(lambda: own.mkdir(mode=0o700, parents=True, exist_ok=True))
        try:
            async for piece in pieces:
                size_bytes += len(piece)
                await self.run(partial(growing.write, piece))
            whole = replace(file, size_bytes=size_bytes)
            await self.run(lambda: _finish(own, growing, whole))
        finally:
            await self.run(lambda: _discard(own, growing))
        return whole

    async def file(self, tenant: str, file_id: str) -> StoredFile | None:
        if not _FILE.fullmatch(file_id):
            return None
        return await self.run(lambda: _file(self._tenant(tenant) / file_id))

    async def files(self, tenant: str) -> list[StoredFile]:
        return await self.run(lambda: _files(self._tenant(tenant)))

    async def filled(self, tenant: str) -> tuple[int, int]:
        return await self.run(lambda: _filled(self._tenant(tenant)))

    async def read_file(self, tenant: str, file_id: str) -> BlobReader | None:
        if not _FILE.fullmatch(file_id):
            return None
        file = await self.run(lambda: _opened(self._tenant(tenant) / file_id / "content"))
        return None if file is None else FilePieces(file, self.run, self._threads)

    async def delete_file(self, tenant: str, file_id: str) -> bool:
        if not _FILE.fullmatch(file_id):
            return False
        return await self.run(lambda: _delete(self._tenant(tenant) / file_id))

    async def add_batch(self, batch: Batch) -> bool:
        return await self.run(lambda: _add_batch(self._folder, self._tenant(batch.tenant), batch))

    async def batch(self, tenant: str, batch_id: str) -> Batch | None:
        if not _BATCH.fullmatch(batch_id):
            return None
        return await self.run(lambda: _batch(self._tenant(tenant) / batch_id))

    async def batches(self, tenant: str, *, after: str, limit: int) -> list[Batch]:
        return await self.run(lambda: _batches(self._tenant(tenant), after, limit))

    async def open_batches(self) -> list[Batch]:
        found = await self.run(lambda: _open_batches(self._folder, self._open))
        self._open = {batch.id: batch for batch in found}
        return found

    async def open_count(self, tenant: str) -> int:
        folder = self._tenant(tenant).name.encode()
        return await self.run(lambda: sum(_read(path) == folder for path in (self._folder / "open").glob("batch_*")))

    async def read_chunk(self, batch: Batch, chunk: Chunk) -> bytes:
        return await self.run(lambda: _read_part(self._of(batch) / "input", chunk.start, chunk.end))

    async def cancel(self, batch: Batch, *, now_s: float) -> None:
        await self.run(lambda: _write_once(self._of(batch) / "cancelled", orjson.dumps(now_s)))

    async def cancelled_s(self, batch: Batch) -> float | None:
        found = await self.run(lambda: _read(self._of(batch) / "cancelled"))
        return None if found is None else float(orjson.loads(found))

    async def end(self, batch: Batch, ended: Ended) -> None:
        await self.run(lambda: _end(self._folder, self._of(batch), ended))

    async def ended(self, batch: Batch) -> Ended | None:
        found = await self.run(lambda: _read(self._of(batch) / "ended"))
        if found is None:
            return None
        plain = orjson.loads(found)
        return Ended(**{**plain, "state": BatchState(plain["state"])})

    async def remove_older(self, before_s: float, *, unfinished_before_s: float) -> None:
        await self.run(lambda: _remove_older(self._folder, before_s))
        await self.run(lambda: _remove_unfinished(self._folder, unfinished_before_s))

    async def close(self) -> None:
        self._threads.shutdown(wait=False)

    def _tenant(self, tenant: str) -> Path:
        return self._folder / sha256(tenant.encode()).hexdigest()[:32]

    def _of(self, batch: Batch) -> Path:
        return self._tenant(batch.tenant) / batch.id

    async def run(self, work: Callable[[], T]) -> T:
        """Do work on the disk, on a thread. Raises StoreUnavailable."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except OSError as exc:
            raise StoreUnavailable(f"the folder of uploaded files: {exc.strerror}", is_full=exc.errno in DISK_FULL) from exc


def _append(path: Path, piece: bytes) -> None:
    with open(path, "ab", opener=open_private) as file:
        file.write(piece)


def _finish(own: Path, growing: GrowingFile, file: StoredFile) -> None:
    if (own / "meta").exists():  # what another process has written stays, also where one that was frozen cannot write the same any more
        return
    growing.finish(own / "content")
    _write_once(own / "meta", orjson.dumps(file))
    for folder in (own, own.parent, own.parent.parent):
        flush_to_disk(folder)


def _discard(own: Path, growing: GrowingFile) -> None:
    """Remove what was written, and its folder if there is nothing else in it."""
    with suppress(OSError):  # the disk may be full
        growing.discard()
    with suppress(OSError):
        own.rmdir()


def _write_once(path: Path, text: bytes) -> None:
    """Write a file whole; where there is one already, that one stays."""
    partial = path.with_name(f".{uuid4().hex}")
    try:
        _append(partial, text)
        flush_to_disk(partial)
        with suppress(FileExistsError):
            os.link(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    flush_to_disk(path.parent)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _opened(path: Path) -> BinaryIO | None:
    try:
        return open(path, "rb")
    except FileNotFoundError:
        return None


def _read_part(path: Path, start: int, end: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(start)
        return file.read(end - start)


def _file(own: Path) -> StoredFile | None:
    found = _read(own / "meta")
    return None if found is None else StoredFile(**orjson.loads(found))


def _files(tenant: Path) -> list[StoredFile]:
    found = [file for path in tenant.glob("file-*") if (file := _file(path)) is not None]
    return sorted(found, key=lambda file: (file.created_s, file.id), reverse=True)


def _filled(tenant: Path) -> tuple[int, int]:
    count, sizes = 0, dict[int, int]()  # an input is another name of its file, which may have been deleted since
    for path in tenant.iterdir() if tenant.exists() else ():
        is_file = path.name.startswith("file-")
        with suppress(FileNotFoundError):  # one that is still received, or is being deleted; a batch that has ended
            found = (path / ("content" if is_file else "input")).stat()
            sizes[found.st_ino] = found.st_size
            count += is_file
    return count, sum(sizes.values())


def _delete(own: Path) -> bool:
    """Delete a file; its `meta` goes first, and without that it is none."""
    try:
        (own / "meta").unlink()
    except FileNotFoundError:
        return False
    shutil.rmtree(own, ignore_errors=True)
    return True


def _add_batch(folder: Path, tenant: Path, batch: Batch) -> bool:
    own, opened = tenant / batch.id, folder / "open"
    own.mkdir(mode=0o700, parents=True, exist_ok=True)
    opened.mkdir(mode=0o700, exist_ok=True)
    try:
        os.link(tenant / batch.input_file_id / "content", own / "input")
        _write_once(opened / batch.id, tenant.name.encode())  # before the batch itself: one that is accepted is looked after
        _write_once(own / "meta", _text_of(batch))
        for path in (tenant, folder):
            flush_to_disk(path)
    except OSError as exc:
        with suppress(OSError):
            (opened / batch.id).unlink(missing_ok=True)  # or it would count as open until what is unfinished is removed
        shutil.rmtree(own, ignore_errors=True)
        if isinstance(exc, FileNotFoundError):
            return False
        raise
    return True


def _text_of(batch: Batch) -> bytes:
    plain = {each.name: getattr(batch, each.name) for each in fields(batch)} | {"chunks": tuple(batch.chunks)}
    if not batch.webhook:
        del plain["webhook"]  # gateways of the version before, beside which this one may run, know no such field
    return orjson.dumps(plain)


def _batch(own: Path) -> Batch | None:
    found = _read(own / "meta")
    if found is None:
        return None
    plain = orjson.loads(found)
    return Batch(**{**plain, "scopes": tuple(plain["scopes"]), "chunks": Chunks(Chunk(**each) for each in plain["chunks"])})


def _batches(tenant: Path, after: str, limit: int) -> list[Batch]:
    ids = sorted((path.name for path in tenant.glob("batch_*") if not after or path.name < after), reverse=True)
    found = (batch for batch_id in ids if (batch := _batch(tenant / batch_id)) is not None)
    return [batch for batch, _ in zip(found, range(limit), strict=False)]


def _open_batches(folder: Path, known: Mapping[str, Batch]) -> list[Batch]:
    found = []
    for path in sorted((folder / "open").glob("batch_*")):
        if (tenant := _read(path)) is None:
            continue
        own = folder / tenant.decode() / path.name
        if (own / "ended").exists():
            _close(folder, own)  # who ended it was killed
        elif (batch := known.get(path.name) or _batch(own)) is not None:
            found.append(batch)
    return found


def _end(folder: Path, own: Path, ended: Ended) -> None:
    _write_once(own / "ended", orjson.dumps(ended))
    _close(folder, own)


def _close(folder: Path, own: Path) -> None:
    """Remove what a batch that has ended no longer needs."""
    (own / "input").unlink(missing_ok=True)
    (folder / "open" / own.name).unlink(missing_ok=True)


def _remove_older(folder: Path, before_s: float) -> None:
    for own in folder.glob("*/file-*"):
        file = _file(own)
        if file is not None and file.created_s < before_s:
            shutil.rmtree(own, ignore_errors=True)
    for own in folder.glob("*/batch_*/ended"):
        batch = _batch(own.parent)
        if batch is not None and batch.created_s < before_s:
            shutil.rmtree(own.parent, ignore_errors=True)


def _remove_unfinished(folder: Path, before_s: float) -> None:
    """Remove what has no `meta`, without which it is nothing, and files that were to be renamed or linked."""
    for own in (*folder.glob("*/file-*"), *folder.glob("*/batch_*")):
        # A folder's own time stands still while an upload only grows the file in it.
        if own.is_dir() and not (own / "meta").exists() and all(_is_older(path, before_s) for path in (own, *own.glob("*"))):
            (folder / "open" / own.name).unlink(missing_ok=True)
            shutil.rmtree(own, ignore_errors=True)
    for path in (*folder.glob("open/.*"), *folder.glob("*/*/.*")):
        if _is_older(path, before_s):
            path.unlink(missing_ok=True)


def _is_older(path: Path, before_s: float) -> bool:
    try:
        return path.stat().st_mtime < before_s
    except FileNotFoundError:  # somebody else removes it
        return False
