"""Writing half of `cache/adapters/redis_cache`: a bounded queue of entries, written in pipelines; what does
not fit is dropped.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from control_plane.cache.adapters.loop_timeout import LoopTimeout
from control_plane.cache.adapters.redis_cache_connection import CacheConnection
from control_plane.cache.domain.shared_value import frame, name_of
from control_plane.telemetry.shared_cache_counts import SharedCacheCounts

_log = logging.getLogger(__name__)

_MAX_QUEUED = 10_000
_MAX_QUEUED_BYTES = 32 * 2**20
_ENTRIES_AT_ONCE = 64
_BYTES_AT_ONCE = 2**20
_WRITE_TIMEOUT_S = 1.0
_PAUSE_S = 1.0
"""Pause after a failure, so that a Redis that is full or away is not pressed; meanwhile entries fill the
queue.
"""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A write that waits in the queue."""

    key: bytes
    value: bytes
    ttl_s: int


class CacheWrites:
    """Write-behind queue of the shared cache: `put` queues entries, and `run` writes them over its own
    connection.
    """

    def __init__(self, connection: CacheConnection, counts: SharedCacheCounts, *, max_value_bytes: int) -> None:
        self._connection = connection
        self._counts = counts
        self._max_value_bytes = max_value_bytes
        self._queued: asyncio.Queue[_Entry] = asyncio.Queue(_MAX_QUEUED)
        self._queued_bytes = 0
        self._is_failing = False

    def put(self, key: bytes, value: bytes, *, ttl_s: float) -> None:
        """Queue an entry without waiting; drop and count it if the queue is full or the value is too
        large.
        """
        has_room = not self._queued.full() and self._queued_bytes + len(value) <= _MAX_QUEUED_BYTES
        if not has_room or len(value) > self._max_value_bytes:
            self._counts.dropped += 1
            return
        # Redis takes whole seconds, and refuses 0.
        self._queued.put_nowait(_Entry(key, value, max(1, int(ttl_s))))
        self._queued_bytes += len(value)

    async def run(self) -> None:
        """Write queued entries, reconnecting after outages, until cancelled."""
        while True:
            try:
                while True:
                    await self._write(await self._next_entries())
            except Exception as exc:  # as in `CacheLookups.run`
                self._failed(self._connection.describe(exc))
            finally:
                self._connection.drop()
            await asyncio.sleep(_PAUSE_S)

    async def _next_entries(self) -> list[_Entry]:
        """Wait for an entry and return it with those behind it, up to the size of one pipeline."""
        entries = [await self._queued.get()]
        size = len(entries[0].value)
        while len(entries) < _ENTRIES_AT_ONCE and size < _BYTES_AT_ONCE and not self._queued.empty():
            entries.append(self._queued.get_nowait())
            size += len(entries[-1].value)
        self._queued_bytes -= size
        return entries

    async def _write(self, entries: list[_Entry]) -> None:
        """Write entries in one pipeline. Raises whatever goes wrong, also the first refusal by Redis."""
        written = 0
        try:
            if not self._connection.is_connected:
                await self._connection.open()
            async with LoopTimeout(_WRITE_TIMEOUT_S):
                refusals = await self._connection.set_many((name_of(e.key), frame(e.key, e.value), e.ttl_s) for e in entries)
            written = refusals.count(None)
        finally:
            # Not tried again: an entry that is lost costs one computation, and a retry would delay newer
            # ones.
            self._counts.written += written
            self._counts.dropped += len(entries) - written
        for refusal in refusals:
            if refusal is not None:
                raise refusal
        self._is_failing = False

    def _failed(self, why: str) -> None:
        """Log a failure, once until a write succeeds again."""
        if not self._is_failing:
            self._is_failing = True
            _log.warning("the shared cache at %s cannot be written to for now: %s", self._connection.place, why)
