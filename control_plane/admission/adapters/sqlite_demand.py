"""SQLite adapter of `admission/ports.DemandBoard`, for the workers of one gateway: a table with one row per
process.

Its contents need not survive a crash, so writes do not wait for the disk (synchronous=NORMAL, which with a
write-ahead log leaves the file intact when power fails), and a file that is damaged is put aside.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import orjson

from control_plane.admission.domain.demand import LIVE_S, Exchange, exchange_of
from control_plane.core.errors import StartupError
from control_plane.storage.sqlite import SqliteFile, open_sqlite, opened_alone, transaction

_log = logging.getLogger(__name__)

_MIGRATIONS = (("CREATE TABLE processes (process TEXT PRIMARY KEY, told_s REAL NOT NULL, demand TEXT NOT NULL) WITHOUT ROWID",),)


class SqliteDemandBoard:
    """Demand board in an SQLite file; `open_sqlite_demand` opens it."""

    def __init__(self, file: SqliteFile, *, now_s: Callable[[], float] = time.monotonic) -> None:
        """`now_s` must be the same clock in all processes, as the system's monotonic clock is."""
        self._file = file
        self._now_s = now_s

    async def exchange(self, process: str, demand: Mapping[str, float]) -> Exchange:
        told = orjson.dumps(demand).decode()
        return await self._file.run(partial(_exchange, process=process, demand=told, now_s=self._now_s))

    async def leave(self, process: str) -> None:
        await self._file.run(lambda connection: connection.execute("DELETE FROM processes WHERE process = ?", (process,)))

    async def close(self) -> None:
        await self._file.close()


async def open_sqlite_demand(path: Path) -> SqliteDemandBoard:
    """Open the board's file, creating it if it is missing or damaged. Raises StartupError, StoreUnavailable."""
    before = _inode(path)
    try:
        file = await open_sqlite(path, _MIGRATIONS)
    except StartupError as exc:
        # An OperationalError is no damage: the folder cannot be written, or the disk is full.
        if not isinstance(exc.__cause__, sqlite3.DatabaseError) or isinstance(exc.__cause__, sqlite3.OperationalError):
            raise
        _put_aside(path, before, exc.__cause__)
        file = await open_sqlite(path, _MIGRATIONS)
    try:
        await file.run(lambda connection: connection.execute("PRAGMA synchronous = NORMAL"))
    except BaseException:
        await file.close()
        raise
    return SqliteDemandBoard(file)


def _put_aside(path: Path, inode: int | None, why: sqlite3.DatabaseError) -> None:
    """Rename the file, unless another process was faster: the file of that name is then a new one."""
    with opened_alone(path.parent):
        if _inode(path) != inode:
            return
        aside = path.with_name(f"{path.name}.damaged")
        for log in ("-wal", "-shm"):
            path.with_name(path.name + log).unlink(missing_ok=True)  # or it would be taken for the new file's
        path.rename(aside)
        _log.warning("%s was damaged (%s): it is put aside as %s and begun anew; nothing of it is needed", path, why, aside.name)


def _inode(path: Path) -> int | None:
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return None


def _exchange(connection: sqlite3.Connection, *, process: str, demand: str, now_s: Callable[[], float]) -> Exchange:
    """Write this process's row, delete those that are too old, and return the sum over all live
    processes.
    """
    with transaction(connection):
        # Read inside the transaction, which excludes other writers: rows with a later time are then from
        # before a reboot, which starts the monotonic clock anew.
        told_s = now_s()
        connection.execute("DELETE FROM processes WHERE told_s NOT BETWEEN ? AND ?", (told_s - LIVE_S, told_s))
        connection.execute("INSERT OR REPLACE INTO processes (process, told_s, demand) VALUES (?, ?, ?)", (process, told_s, demand))
        texts = [text for (text,) in connection.execute("SELECT demand FROM processes")]
    # On this thread, not on the event loop: with 10,000 active tenants and eight processes it is 80,000 sums and 3 MB of JSON.
    return exchange_of([orjson.loads(text) for text in texts])
