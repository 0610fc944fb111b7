"""SQLite adapter of `admin/idempotency/ports.IdempotencyRecords`, for one gateway: a table with a row for each record."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from control_plane.admin.idempotency.ports import KEEP_S, Record, caller_of, require_room
from control_plane.storage.sqlite import SqliteFile, open_sqlite, transaction

_MIGRATIONS = (
    ("CREATE TABLE records (name TEXT PRIMARY KEY, digest TEXT NOT NULL, answer TEXT NOT NULL, until_s REAL NOT NULL) WITHOUT ROWID",),
)


class SqliteIdempotencyRecords:
    """Idempotency records in an SQLite file; `open_sqlite_records` opens it."""

    def __init__(self, file: SqliteFile, *, now_s: Callable[[], float]) -> None:
        """`now_s` is seconds since 1970, since records outlive a restart."""
        self._file = file
        self._now_s = now_s

    async def begin(self, name: str, digest: str) -> Record | None:
        return await self._file.run(partial(_begin, name=name, digest=digest, clock=self._now_s))

    async def answer(self, name: str, digest: str, sealed: str) -> None:
        await self._change("UPDATE records SET answer = ? WHERE name = ? AND digest = ? AND answer = ''", (sealed, name, digest))

    async def forget(self, name: str, digest: str) -> None:
        await self._change("DELETE FROM records WHERE name = ? AND digest = ? AND answer = ''", (name, digest))

    async def close(self) -> None:
        await self._file.close()

    async def _change(self, statement: str, values: tuple[str, ...]) -> None:
        await self._file.run(lambda connection: connection.execute(statement, values).rowcount)


async def open_sqlite_records(path: Path, *, now_s: Callable[[], float] = time.time) -> SqliteIdempotencyRecords:
    """Open the file, creating or migrating it; `now_s` is seconds since 1970. Raises StartupError."""
    return SqliteIdempotencyRecords(await open_sqlite(path, _MIGRATIONS), now_s=now_s)


def _begin(connection: sqlite3.Connection, *, name: str, digest: str, clock: Callable[[], float]) -> Record | None:
    """Make a record and return None; or return the earlier one. Raises what `require_room` raises."""
    with transaction(connection):
        # Read within the transaction, which excludes other writers: what would be kept for longer than that was written
        # before the clock was set back.
        now_s = clock()
        connection.execute("DELETE FROM records WHERE until_s <= ? OR until_s > ?", (now_s, now_s + KEEP_S))
        for earlier in connection.execute("SELECT digest, answer FROM records WHERE name = ?", (name,)):
            return Record(*earlier)
        require_room(
            *connection.execute("SELECT coalesce(sum(instr(name, ?) = 1), 0), count(*) FROM records", (caller_of(name),)).fetchone()
        )
        connection.execute("INSERT INTO records VALUES (?, ?, '', ?)", (name, digest, now_s + KEEP_S))
        return None
