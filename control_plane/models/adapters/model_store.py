"""Cold store of models: a folder, or an object store that fsspec has a client for, whose subfolders are
models.

Implements `models/ports.ModelStore`. Credentials come from the provider's own chain (variables, files,
roles), never from the URL. Calls of asynchronous clients run on fsspec's thread, where they
can be cancelled; those of other clients are short.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import re
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.local import LocalFileSystem

from control_plane.core.errors import ModelLoadFailed, ModelNotFound, StartupError, StoreUnavailable
from control_plane.core.model import MODEL_NAME, NAME_RULE
from control_plane.models.adapters.stopping import require_going
from control_plane.models.domain.model_source import ModelSource, SourceFile, refusal
from control_plane.models.ports import Stop
from control_plane.storage.object_stores import close_object_store, open_object_store, text_of_error

_log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

_CALL_TIMEOUT_S = 60.0
"""Time limit of one listing or read, the client's own retries included: 32 MiB that take longer (half a MiB
per second) are stuck.
"""
_POLL_S = 0.1
_STREAMS = 4
"""Parallel requests of one read from an object store: a single S3 stream has some 50-90 MB/s (AWS,
"Performance guidelines").
"""
_MAX_MODELS = 100_000
_MD5 = re.compile(r'"?([0-9a-f]{32})"?')
_IDENTITY = ("ETag", "etag", "generation", "md5Hash", "content_md5", "LastModified", "last_modified", "mtime", "ino", "created")
"""Attributes by which fsspec's clients tell that a file has changed; an etag alone is enough."""


class FsspecModelStore:
    """Model store at a folder or a URL such as `s3://bucket/prefix`."""

    def __init__(self, url: str, *, call_timeout_s: float = _CALL_TIMEOUT_S) -> None:
        """Prepare without a request. Raises StartupError: no client reads such a URL, or the folder does not
        exist.
        """
        self._call_timeout_s = call_timeout_s
        self._fs, root = open_object_store(url, setting="--model-store")
        self.url = url  # as it is, for stores are told apart by it; with credentials in it, it would have been refused
        self._root = root.rstrip("/")
        self._is_local = isinstance(self._fs, LocalFileSystem)
        self._refused: set[str] = set()
        if self._is_local and not Path(root).is_dir():
            raise StartupError(f"--model-store {self.url} is not a folder; name one whose subfolders are models")

    def names(self, stop: Stop) -> list[str]:
        """Return the models, as `models/ports.ModelStore.names` says; what cannot be a model's name is logged
        once and left out.
        """
        try:
            entries = self._call(stop, "ls", self._root, detail=True)
        except FileNotFoundError:
            raise StoreUnavailable(f"model store {self.url} cannot be read: it does not exist, or is empty") from None
        if len(entries) > _MAX_MODELS:
            raise StoreUnavailable(f"model store {self.url} holds more than {_MAX_MODELS} entries; divide it")
        folders = {self._name_in(entry["name"], self._root) for entry in entries if entry["type"] == "directory"}
        names = {name for name in folders if name and not name.startswith(".")}
        good = {name for name in names if MODEL_NAME.fullmatch(name)}
        for name in sorted(names - good - self._refused):
            _log.warning("%r in model store %s cannot be a model's name, which is %s", name[:255], self.url, NAME_RULE)
        self._refused = names - good
        return sorted(good)

    def describe(self, name: str, stop: Stop) -> ModelSource:
        """List a model's files, as `models/ports.ModelStore.describe` says; hidden files are no part of a
        model.
        """
        if not MODEL_NAME.fullmatch(name):
            raise ModelNotFound(f"{name[:255]!r} cannot be a model's name, which is {NAME_RULE}")
        folder = f"{self._root}/{name}"
        try:
            found: Mapping[str, dict[str, Any]] = self._call(stop, "find", folder, detail=True)
        except FileNotFoundError:
            found = {}
        if not found:
            raise ModelNotFound(f"no model {name!r} in model store {self.url}, or it is empty")
        files = [file for path, entry in found.items() if (file := self._file(name, self._name_in(path, folder), entry)) is not None]
        source = ModelSource(name, tuple(sorted(files, key=lambda file: file.path)))
        if reason := refusal(source.files):
            raise ModelLoadFailed(f"model {name!r} in model store {self.url} cannot be fetched: {reason}")
        return source

    def read(self, name: str, path: str, span: range, stop: Stop) -> Sequence[bytes]:
        """Read a span of a file, as `models/ports.ModelStore.read` says."""
        whole = f"{self._root}/{name}/{path}"
        try:
            pieces = self._read_streams(whole, span, stop) if self._is_async else [self._read_piece(whole, span, stop)]
        except FileNotFoundError as exc:
            raise ModelLoadFailed(f"{path} of model {name!r} in model store {self.url} is gone", is_transient=True) from exc
        if sum(map(len, pieces)) != len(span):
            raise ModelLoadFailed(f"{path} of model {name!r} in model store {self.url} is shorter than it was", is_transient=True)
        return pieces

    def close(self) -> None:
        """Close the client's connections, where the client has a way to."""
        close_object_store(self._fs)

    @property
    def _is_async(self) -> bool:
        return isinstance(self._fs, AsyncFileSystem)

    def _read_piece(self, path: str, span: range, stop: Stop) -> bytes:
        piece: bytes = self._call(stop, "cat_file", path, start=span.start, end=span.stop) if span else b""
        return piece

    def _read_streams(self, path: str, span: range, stop: Stop) -> list[bytes]:
        """Read a span by several parallel requests, in pieces of at least one MiB."""
        each = max(1 << 20, -(-len(span) // _STREAMS))
        starts = list(span[::each])
        ends = [min(start + each, span.stop) for start in starts]

        async def read() -> list[bytes]:
            # Not fsspec's own `cat_ranges`, whose requests go on when it is cancelled.
            spans = zip(starts, ends, strict=True)
            pieces: list[bytes] = await asyncio.gather(*(self._fs._cat_file(path, start=start, end=end) for start, end in spans))
            return pieces

        return self._translated(stop, lambda: self._await(read(), stop))

    def _file(self, name: str, path: str, entry: dict[str, Any]) -> SourceFile | None:
        """Convert fsspec's entry of a file; None for what is no part of a model. Raises ModelLoadFailed."""
        parts = path.split("/")
        if path.endswith("/") or not path or any(part.startswith(".") and part not in (".", "..") for part in parts):
            return None  # a marker object of a folder, or a hidden file
        if entry.get("islink"):
            entry = self._behind_link(name, path)
        if entry["type"] != "file":
            raise ModelLoadFailed(f"{path} of model {name!r} in model store {self.url} is no file")
        etag = str(entry.get("ETag") or entry.get("etag") or "")
        md5 = _MD5.fullmatch(etag)
        identity = etag or "/".join(str(entry[key]) for key in _IDENTITY if entry.get(key) is not None)
        return SourceFile(path, int(entry["size"]), identity, md5[1] if md5 else None)

    def _behind_link(self, name: str, path: str) -> dict[str, Any]:
        """Follow a link to a file in the same store, as download caches have them; never out of the store."""
        target = Path(os.path.realpath(f"{self._root}/{name}/{path}"))
        if not target.is_relative_to(os.path.realpath(self._root)) or not target.is_file():
            raise ModelLoadFailed(f"{path} of model {name!r} in model store {self.url} is a link that leads to no file of the store")
        entry: dict[str, Any] = self._fs.info(str(target))
        return entry

    def _name_in(self, path: str, folder: str) -> str:
        stripped = str(path).removeprefix(folder)
        return stripped[1:] if folder else stripped.removeprefix("/")

    def _call(self, stop: Stop, method: str, *args: Any, **options: Any) -> Any:
        if self._is_async:
            return self._translated(stop, lambda: self._await(getattr(self._fs, f"_{method}")(*args, **options), stop))
        return self._translated(stop, lambda: getattr(self._fs, method)(*args, **options))

    def _await(self, coroutine: Coroutine[Any, Any, ResultT], stop: Stop) -> ResultT:
        return _wait(asyncio.run_coroutine_threadsafe(coroutine, self._fs.loop), stop, self._call_timeout_s)

    def _translated(self, stop: Stop, work: Callable[[], ResultT]) -> ResultT:
        try:
            require_going(stop)
            return work()
        except (FileNotFoundError, StoreUnavailable):
            raise
        except Exception as exc:  # each client raises errors of its own; botocore's are not even OSErrors
            raise StoreUnavailable(f"model store {self.url} cannot be read: {text_of_error(exc)}") from None


def _wait(future: concurrent.futures.Future[ResultT], stop: Stop, timeout_s: float) -> ResultT:
    """Wait for a call on fsspec's thread, ending it at the time limit or when `stop` is set.

    It polls, since a thread cannot wait for a future and an event at once. Raises TimeoutError,
    StoreUnavailable.
    """
    over_s = time.monotonic() + timeout_s
    while not concurrent.futures.wait([future], timeout=_POLL_S).done:
        if stop.is_set() or time.monotonic() > over_s:
            future.cancel()
            require_going(stop)
            raise TimeoutError(f"no answer in {timeout_s:g} s")
    return future.result()
