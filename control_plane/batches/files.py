"""Files of OpenAI's API: the input of batches and what comes of them; called by `frontends/batches`.

A caller sees the files of its own tenant, but not what batches for models that it may not call have written; no others
exist for it.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from uuid import uuid4

from control_plane.batches.domain.batch import StoredFile
from control_plane.batches.ports import Shelf
from control_plane.core.errors import InvalidRequest, LimitExceeded, ObjectNotFound
from control_plane.core.principal import Principal

_PIECE_BYTES = 1 << 20
_MAX_NAME_CHARS = 255
_MAX_FILES = 10_000
"""Most files of one tenant: they are listed by looking at each."""


class Files:
    """Application service for files."""

    def __init__(self, shelf: Shelf, *, max_bytes: int, today_s: Callable[[], float] = time.time) -> None:
        """`max_bytes` is how much one tenant may have; `today_s` is seconds since 1970."""
        self._shelf = shelf
        self._max_bytes = max_bytes
        self._today_s = today_s

    async def add(self, principal: Principal, *, filename: str, purpose: str, content: bytes) -> StoredFile:
        """Keep a file.

        Raises:
            InvalidRequest: its purpose is not `batch`, or it is empty.
            LimitExceeded: the tenant has as many files, or bytes of them, as it may.
        """
        if purpose != "batch":
            raise InvalidRequest(f"purpose must be 'batch', which is what files are for here; got {purpose[:50]!r}", field="purpose")
        if not content:
            raise InvalidRequest("the file is empty", field="file")
        kept = await self._shelf.files(principal.tenant)
        total = sum(file.size_bytes for file in kept)
        if len(kept) >= _MAX_FILES or total + len(content) > self._max_bytes:
            most = f"{_MAX_FILES} files and {self._max_bytes} bytes"
            raise LimitExceeded(f"this tenant has {len(kept)} files with {total} bytes, and {most} are allowed; delete some first")
        file = StoredFile(f"file-{uuid4().hex}", principal.tenant, filename[:_MAX_NAME_CHARS], purpose, 0, self._today_s())
        return await self._shelf.add_file(file, _pieces(content))

    async def get(self, principal: Principal, file_id: str) -> StoredFile:
        """Return a file. Raises ObjectNotFound."""
        file = await self._shelf.file(principal.tenant, file_id)
        if file is None or not _may_see(principal, file):
            raise _none(file_id)
        return file

    async def files_of(self, principal: Principal) -> list[StoredFile]:
        """Return the files that the caller may see, the newest first."""
        return [file for file in await self._shelf.files(principal.tenant) if _may_see(principal, file)]

    async def content(self, principal: Principal, file_id: str) -> bytes:
        """Return a file's content. Raises ObjectNotFound."""
        await self.get(principal, file_id)
        content = await self._shelf.read_file(principal.tenant, file_id)
        if content is None:
            raise _none(file_id)
        return content

    async def delete(self, principal: Principal, file_id: str) -> None:
        """Delete a file; batches that were made of it go on. Raises ObjectNotFound."""
        await self.get(principal, file_id)
        if not await self._shelf.delete_file(principal.tenant, file_id):
            raise _none(file_id)


def _may_see(principal: Principal, file: StoredFile) -> bool:
    return not file.model or principal.scopes.allow_inference(file.model)


def _none(file_id: str) -> ObjectNotFound:
    return ObjectNotFound(f"there is no file {file_id[:100]!r}")


async def _pieces(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), _PIECE_BYTES):
        yield content[start : start + _PIECE_BYTES]
