"""Files of OpenAI's API: the input of batches and what comes of them; called by `frontends/batches`.

A caller sees the files of its own tenant, but not what batches for models that it may not call have written; no others
exist for it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing
from uuid import uuid4
from weakref import WeakValueDictionary

from control_plane.batches.domain.batch import StoredFile
from control_plane.batches.ports import Shelf
from control_plane.core.errors import InvalidRequest, LimitExceeded, ObjectNotFound
from control_plane.core.principal import Principal
from control_plane.jobs.ports import BlobReader
from control_plane.jobs.upload_slots import UploadSlots

_MAX_NAME_CHARS = 255
_MAX_FILES = 10_000
"""Most files of one tenant: they are listed by looking at each."""
_FULL_RETRY_S = 600.0
"""Told to who has as many files as may be: none goes before he deletes it, or weeks have passed."""


class Files:
    """Application service for files."""

    def __init__(self, shelf: Shelf, *, max_bytes: int, slots: UploadSlots | None = None, today_s: Callable[[], float] = time.time) -> None:
        """`max_bytes` is how much one tenant may have; `slots` are shared with what else receives large bodies; `today_s` is
        seconds since 1970.
        """
        self._shelf = shelf
        self.max_bytes = max_bytes
        self._today_s = today_s
        self.answer_bytes: Callable[[str], int] = lambda tenant: 0
        """Bytes of the answers that a tenant's open batches have so far, which become files once these have ended."""
        self._arriving: Counter[str] = Counter()
        """Bytes of each tenant's files that are being received."""
        self._ends: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Lock of each tenant, under which its files come to their end one after the other."""
        self._slots = slots or UploadSlots()

    async def add(self, principal: Principal, *, filename: str, content: AsyncIterator[bytes]) -> StoredFile:
        """Keep a file, as its content arrives. Nothing of it stays where that raises, or the caller leaves.

        Raises:
            InvalidRequest: it is empty.
            LimitExceeded: the tenant has as many files, or bytes of them, as it may, or sends too many at a time.
            Overloaded: all together do.
        """
        file = StoredFile(f"file-{uuid4().hex}", principal.tenant, filename[:_MAX_NAME_CHARS], "batch", 0, self._today_s())
        with self._slots.take(principal.tenant):
            # What it counts as arriving counts until the shelf has the file, and never twice.
            async with AsyncExitStack() as end, aclosing(self._bounded(principal.tenant, content, end)) as pieces:
                return await self._shelf.add_file(file, pieces)

    async def _bounded(self, tenant: str, content: AsyncIterator[bytes], end: AsyncExitStack) -> AsyncGenerator[bytes, None]:
        """Yield the content as far as the tenant has room for it. What it counts is given back where that fails, and else
        with `end`. Raises LimitExceeded.
        """
        own_bytes, kept = 0, await self._shelf.filled(tenant)
        try:
            self._require_room(tenant, kept)
            async for piece in content:
                own_bytes += len(piece)
                self._arriving[tenant] += len(piece)
                self._require_room(tenant, kept)
                yield piece
            if not own_bytes:
                raise InvalidRequest("the file is empty", field="file")
            await end.enter_async_context(self._ends.setdefault(tenant, asyncio.Lock()))
            self._require_room(tenant, await self._shelf.filled(tenant))  # others may have come to their end meanwhile
        except BaseException:
            self._give_back(tenant, own_bytes)
            raise
        end.callback(self._give_back, tenant, own_bytes)

    def _give_back(self, tenant: str, size_bytes: int) -> None:
        self._arriving[tenant] -= size_bytes
        if not self._arriving[tenant]:
            del self._arriving[tenant]

    async def require_room(self, principal: Principal) -> None:
        """Raise LimitExceeded where the tenant has as many files, or bytes of them, as it may."""
        self._require_room(principal.tenant, await self._shelf.filled(principal.tenant))

    async def filled_bytes(self, tenant: str) -> int:
        """Return the bytes of a tenant's files and of the inputs of his open batches. Raises StoreUnavailable."""
        return (await self._shelf.filled(tenant))[1]

    def _require_room(self, tenant: str, kept: tuple[int, int]) -> None:
        count, total = kept[0], kept[1] + self.answer_bytes(tenant)
        if count >= _MAX_FILES or total + self._arriving[tenant] > self.max_bytes:
            most = f"{_MAX_FILES} files and {self.max_bytes} bytes"
            raise LimitExceeded(
                f"this tenant has {count} files with {total} bytes, the inputs and answers of open batches among them, and {most} are "
                "allowed; delete some first",
                retry_after_s=_FULL_RETRY_S,
            )

    async def get(self, principal: Principal, file_id: str) -> StoredFile:
        """Return a file. Raises ObjectNotFound."""
        file = await self._shelf.file(principal.tenant, file_id)
        if file is None or not _may_see(principal, file):
            raise _none(file_id)
        return file

    async def files_of(self, principal: Principal) -> list[StoredFile]:
        """Return the files that the caller may see, the newest first."""
        return [file for file in await self._shelf.files(principal.tenant) if _may_see(principal, file)]

    async def content(self, principal: Principal, file_id: str) -> BlobReader:
        """Return a file's content, to be received piece by piece and closed. Raises ObjectNotFound."""
        await self.get(principal, file_id)
        reader = await self._shelf.read_file(principal.tenant, file_id)
        if reader is None:
            raise _none(file_id)
        return reader

    async def delete(self, principal: Principal, file_id: str) -> None:
        """Delete a file; batches that were made of it go on. Raises ObjectNotFound."""
        await self.get(principal, file_id)
        if not await self._shelf.delete_file(principal.tenant, file_id):
            raise _none(file_id)


def _may_see(principal: Principal, file: StoredFile) -> bool:
    return not file.model or principal.scopes.allow_inference(file.model)


def _none(file_id: str) -> ObjectNotFound:
    return ObjectNotFound(f"there is no file {file_id[:100]!r}")
