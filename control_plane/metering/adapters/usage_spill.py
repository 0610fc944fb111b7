"""Batches of usage in files, for the next process: `metering/ports.UsageSpill` in `<state_dir>/usage-spill`.

Written when a process ends while its usage store is away. Workers share the folder; two that take up the same batch add
it under the same id, so that it counts once.
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
    """One file for each batch, named by when it was written, so that their names' order is theirs."""

    def __init__(self, path: Path) -> None:
        """It is made when it is first needed."""
        self._path = path
        self._newest = 0

    def batches(self) -> Iterator[UsageBatch]:
        for file in self._files("*"):
            try:
                yield decode_batch(file.read_bytes())
            except FileNotFoundError:
                continue  # another worker was faster
            except (OSError, InvalidRequest) as exc:
                _log.error("usage that an earlier run left in %s cannot be read, and is not counted: %s", file, exc)

    def write(self, batch: UsageBatch) -> None:
        self._newest = max(self._newest + 1, time.time_ns())
        file = self._path / f"{self._newest:020}-{batch.id}.json"
        partial = file.with_suffix(".partial")
        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Not synced: it must outlive this process, not the machine, and a stop must not wait for a hundred disk writes.
            partial.write_bytes(encode_batch(batch))
            os.replace(partial, file)
        except OSError as exc:
            raise StoreUnavailable(f"{file} cannot be written: {exc.strerror}") from exc

    def remove(self, batch: UsageBatch) -> None:
        for file in self._files(batch.id):
            try:
                file.unlink(missing_ok=True)
            except OSError as exc:
                _log.error("%s has been counted and cannot be removed; it will not count again: %s", file, exc)

    def _files(self, batch_id: str) -> list[Path]:
        return sorted(self._path.glob(f"*-{batch_id}.json"))
