"""`fleet/ports.FleetMemory` of a fleet that one process has to itself: a JSON file in its state folder,
replaced atomically by each change.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import TypeVar

from control_plane.core.errors import InvalidRequest, StoreUnavailable
from control_plane.fleet.adapters.memory_text import decode, encode
from control_plane.fleet.domain.memory import DesiredState, Measured

_log = logging.getLogger(__name__)

RecordT = TypeVar("RecordT", Measured, DesiredState)


class LocalFleetMemory:
    """File-backed store of measurements and desired states. The file is read once; a damaged one is set aside
    under another name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._measured: dict[str, Measured] | None = None
        self._wishes: dict[str, DesiredState] = {}
        self._turn = asyncio.Lock()
        """Serialises changes: each writes the whole file, from what is known when its turn comes."""
        self._writing = Lock()
        """Serialises the threads that write: the one of a caller that was cancelled goes on writing."""

    async def measured(self) -> Mapping[str, Measured]:
        async with self._turn:
            return await self._load()

    async def measure(self, changes: Mapping[str, Measured | None]) -> None:
        async with self._turn:
            changed = {**await self._load(), **changes}
            measured = {name: known for name, known in changed.items() if known is not None}
            await asyncio.to_thread(self._write, measured, self._wishes)
            # Only after the write: what was not written is not shown either.
            self._measured = measured

    async def wishes(self) -> Mapping[str, DesiredState]:
        async with self._turn:
            await self._load()
            return self._wishes

    async def wish(self, changes: Mapping[str, DesiredState | None]) -> None:
        async with self._turn:
            measured = await self._load()
            wishes = {name: wish for name, wish in {**self._wishes, **changes}.items() if wish is not None}
            await asyncio.to_thread(self._write, measured, wishes)
            self._wishes = wishes

    async def close(self) -> None: ...

    async def _load(self) -> dict[str, Measured]:
        if self._measured is not None:
            return self._measured
        self._measured, self._wishes = measured, _ = await asyncio.to_thread(self._read)
        return measured

    def _read(self) -> tuple[dict[str, Measured], dict[str, DesiredState]]:
        """Read the file. A missing one is empty, a damaged one is set aside, and one that cannot be read is
        an error."""
        try:
            found = json.loads(self._path.read_bytes())
            return _records(Measured, found["measured"]), _records(DesiredState, found["wishes"])
        except FileNotFoundError:
            pass
        except OSError as exc:
            raise StoreUnavailable(f"{self._path} cannot be read: {exc.strerror}") from exc
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
            self._set_aside(exc)
        return {}, {}

    def _set_aside(self, error: Exception) -> None:
        """Rename a damaged file, so that somebody can look at it."""
        aside = self._path.with_suffix(".damaged")
        _log.error(
            "the file of what is known of models was damaged, and is kept as %s; sizes and load times are measured anew: %s", aside, error
        )
        try:
            os.replace(self._path, aside)
        except OSError as exc:
            raise StoreUnavailable(f"{self._path} cannot be replaced: {exc.strerror}") from exc

    def _write(self, measured: Mapping[str, Measured], wishes: Mapping[str, DesiredState]) -> None:
        content = b'{"measured":%s,"wishes":%s}\n' % (_encode_all(measured), _encode_all(wishes))
        with self._writing:
            try:
                self._replace(content)
            except OSError as exc:
                raise StoreUnavailable(f"{self._path} cannot be written: {exc.strerror}") from exc

    def _replace(self, content: bytes) -> None:
        # Write and rename: a crash leaves the old file or the new one, never half of one.
        partial = self._path.with_suffix(".partial")
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with partial.open("wb") as written:
            written.write(content)
            written.flush()
            os.fsync(written.fileno())  # without it a power failure could leave an empty file
        os.replace(partial, self._path)


def _encode_all(records: Mapping[str, Measured] | Mapping[str, DesiredState]) -> bytes:
    return b"{%s}" % b",\n".join(b"%s:%s" % (json.dumps(name).encode(), encode(record)) for name, record in records.items())


def _records(kind: type[RecordT], found: dict[str, object]) -> dict[str, RecordT]:
    records = {}
    for model, record in found.items():
        try:
            records[model] = decode(kind, model, json.dumps(record))
        except InvalidRequest as exc:
            _log.warning("%s", exc)
    return records
