"""Files of callers in an object store that fsspec has a client for; implements `files/ports.FileStore`.

Calls of asynchronous clients (S3) run on fsspec's thread and are cancelled with their caller; those of others on threads of
their own, which a store that does not answer may take all of.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from fsspec.asyn import AsyncFileSystem

from control_plane.core.errors import StoreUnavailable
from control_plane.jobs.files.ports import FileVersion, NoSuchFile
from control_plane.storage.object_stores import close_object_store, open_object_store, text_of_error

_log = logging.getLogger(__name__)

_THREADS = 4
_MOST_PUT_BYTES = 5 << 30
"""Largest object that S3 takes by one request. What s3fs writes in parts stays in the bucket, unseen, where it is cancelled."""
_MARKS = ("ETag", "etag", "generation", "LastModified", "updated", "mtime", "created")
"""Fields by which clients tell one version of an object from another."""


class ObjectFiles:
    """File store in an object store, at a URL such as `s3://bucket/folder`."""

    def __init__(self, url: str) -> None:
        """Prepare without a request. Raises StartupError: no client reads such a URL."""
        self._url = url
        self._fs, root = open_object_store(url, setting="TIDEGATE_JOBS_STORES")
        self._root = root.rstrip("/")
        self._options: dict[str, Any] = {"chunksize": _MOST_PUT_BYTES} if url.startswith(("s3:", "s3a:")) else {}
        """How a client is told to write an object by one request."""
        self._why_away = ""
        """What was logged last of a store that cannot be used; empty once it was used again."""
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="job-objects")

    async def version(self, path: Sequence[str]) -> FileVersion:
        found: dict[str, Any] = await self._call("info", self._key(path))
        if found.get("type") != "file":
            raise NoSuchFile("there is no such file")
        return FileVersion(int(found["size"]), " ".join(str(found.get(name)) for name in _MARKS))

    async def read(self, path: Sequence[str], *, start: int, most: int) -> bytes:
        content: bytes = await self._call("cat_file", self._key(path), start=start, end=start + most)
        return content

    async def write(self, path: Sequence[str], content: bytes) -> None:
        await self._call("pipe_file", self._key(path), content, **self._options)

    async def sweep(self, before_s: float) -> None:
        """Nothing is to be done: a write that was cut off is no object."""

    async def close(self) -> None:
        await asyncio.to_thread(close_object_store, self._fs)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _key(self, path: Sequence[str]) -> str:
        return "/".join((self._root, *path))

    async def _call(self, method: str, *args: Any, **options: Any) -> Any:
        try:
            if isinstance(self._fs, AsyncFileSystem):
                calling = asyncio.run_coroutine_threadsafe(getattr(self._fs, f"_{method}")(*args, **options), self._fs.loop)
                answer = await asyncio.wrap_future(calling)
            else:
                call = partial(getattr(self._fs, method), *args, **options)
                answer = await asyncio.get_running_loop().run_in_executor(self._threads, call)
        except FileNotFoundError as exc:
            raise NoSuchFile("there is no such file") from exc
        except Exception as exc:  # each client raises errors of its own; botocore's are not even OSErrors
            self._note_away(exc)
            raise StoreUnavailable(f"the store of files cannot be used ({type(exc).__name__}); the gateway's log says more") from None
        self._why_away = ""
        return answer

    def _note_away(self, exc: Exception) -> None:
        """Log what the client says, which callers are not shown: it may name hosts and buckets that are none of their
        business."""
        if type(exc).__name__ != self._why_away:
            _log.warning("the store of files %s cannot be used: %s", self._url, text_of_error(exc))
        self._why_away = type(exc).__name__
