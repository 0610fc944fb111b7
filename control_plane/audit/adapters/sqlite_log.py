"""SQLite adapter of `audit/ports.AuditLog`, for one gateway.

Triggers refuse updates and deletions, so that no statement of ours can change what was written. They do not bind
whoever may write the file: the chain of hashes shows that.
"""

from __future__ import annotations

import sqlite3
import time
from functools import partial
from pathlib import Path

from control_plane.audit.domain.entry import Change, Entry, from_json, sealed, to_json
from control_plane.storage.sqlite import SqliteFile, open_sqlite, transaction

_MIGRATIONS = (
    (
        "CREATE TABLE entries (number INTEGER PRIMARY KEY, entry TEXT NOT NULL)",
        "CREATE TRIGGER no_update BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END",
        "CREATE TRIGGER no_delete BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END",
    ),
)


class SqliteAuditLog:
    """Audit log in an SQLite file; `open_sqlite_audit` opens it."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    async def append(self, change: Change) -> Entry:
        return await self._file.run(partial(_append, change=change, at_s=time.time()))

    async def page(self, after: int, *, limit: int) -> list[Entry]:
        return await self._file.run(partial(_page, after=after, limit=limit))

    async def newest(self) -> int:
        return await self._file.run(_newest)

    async def close(self) -> None:
        await self._file.close()


async def open_sqlite_audit(path: Path) -> SqliteAuditLog:
    """Open the file, creating or migrating it. Raises StartupError."""
    return SqliteAuditLog(await open_sqlite(path, _MIGRATIONS))


def _append(connection: sqlite3.Connection, *, change: Change, at_s: float) -> Entry:
    with transaction(connection):  # reads the last entry and writes the next: no other process writes in between
        last = _page(connection, after=_newest(connection) - 1, limit=1)
        entry = sealed(last[0] if last else None, change, at_s=at_s)
        connection.execute("INSERT INTO entries (number, entry) VALUES (?, ?)", (entry.number, to_json(entry).decode()))
    return entry


def _page(connection: sqlite3.Connection, *, after: int, limit: int) -> list[Entry]:
    rows = connection.execute("SELECT entry FROM entries WHERE number > ? ORDER BY number LIMIT ?", (after, limit))
    return [from_json(text) for (text,) in rows]


def _newest(connection: sqlite3.Connection) -> int:
    (newest,) = connection.execute("SELECT ifnull(max(number), 0) FROM entries").fetchone()
    return int(newest)
