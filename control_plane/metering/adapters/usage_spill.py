"""Spill of usage batches to files for the next process; implements `metering/ports.UsageSpill`.

Written to `<state_dir>/usage-spill` when a process ends while its usage store is away. Workers share the
folder; if two of them send the same batch, it has the same id and counts once.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

from control_plane.core.errors import InvalidRequest, StoreUnavailable
from control_plane.metering.domain.usage import UsageBatch
from control_plane.metering.domain.usage_text import decode_batch, encode_batch

_log = logging.getLogger(__name__)


class UsageSpillFolder:
    """Folder with a file for each batch; the files' names begin with the time, so they sort in the order of
    writing.
    """

    def __init__(self, path: Path) -> None:
        """`path` is created when the first batch is written."""
        self._path = path
        self._newest = 0
        self._read: dict[str, Path] = {}
        """Files of the batches that were read and not removed yet, by the id of each."""

    def batches(self) -> Iterator[UsageBatch]:
        for file in self._files("*"):
            try:
                batch = decode_batch(file.read_bytes())
            except FileNotFoundError:
                continue  # another worker was faster
            except (OSError, InvalidRequest) as exc:
                _log.error("usage that an earlier run left in %s cannot be read, and is not counted: %s", file, exc)
                continue
            self._read[batch.id] = file
            yield batch

    def write(self, batch: UsageBatch) -> None:
        self._newest = max(self._newest + 1, time.time_ns())
        file = self._path / f"{self._newest:020}-{batch.id}.json"
        partial = file.with_suffix(".partial")
        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            # No fsync: the file must survive the process, not a power failure, and a stop must not wait for a
            # hundred syncs.
            partial.write_bytes(encode_batch(batch))
            os.replace(partial, file)
        except OSError as exc:
            raise StoreUnavailable(f"{file} cannot be written: {exc.strerror}") from exc

    def remove(self, batch: UsageBatch) -> None:
        read = self._read.pop(batch.id, None)
        for file in self._files(batch.id) if read is None else [read]:  # a look at the folder costs 1 us for each file in it
            try:
                file.unlink(missing_ok=True)
            except OSError as exc:
                _log.error("%s has been counted and cannot be removed; it will not count again: %s", file, exc)

    def _files(self, batch_id: str) -> list[Path]:
        return sorted(self._path.glob(f"*-{batch_id}.json"))
