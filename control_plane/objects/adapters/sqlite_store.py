"""SQLite adapter of `objects/ports.StateStore`, for one gateway and its workers.

There is one row per object, with the resource_version of its last change. A deleted object's row stays,
without a body (a tombstone): so the rows alone tell what changed since any version, and no number is given
twice.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from control_plane.core.errors import ObjectNotFound
from control_plane.objects.domain.stored import Kind, Stored, check_expected, check_not_older, kind_named
from control_plane.storage.sqlite import SqliteFile, open_sqlite, transaction

_POLL_S = 0.1
"""Poll interval of `changes` for what other processes write, which SQLite cannot notify. One poll costs some 50 us."""

_MIGRATIONS = (
    (
        (
            "CREATE TABLE objects (kind TEXT NOT NULL, name TEXT NOT NULL, resource_version INTEGER NOT NULL, body TEXT,"
            " PRIMARY KEY (kind, name)) WITHOUT ROWID"
        ),
        "CREATE UNIQUE INDEX objects_in_order_of_change ON objects (resource_version)",
    ),
)
_COLUMNS = "kind, name, resource_version, body"

_Row = tuple[str, str, int, str | None]


class SqliteStateStore:
    """State store in an SQLite file; `open_sqlite_state` opens it."""

    def __init__(self, file: SqliteFile, *, poll_s: float = _POLL_S) -> None:
        self._file = file
        self._poll_s = poll_s
        self._written = asyncio.Event()
        """Set, and replaced, by each write of this process."""

    async def get(self, kind: Kind, name: str) -> Stored | None:
        return await self._file.run(partial(_get, kind=kind, name=name))

    async def list_all(self, kind: Kind) -> list[Stored]:
        return await self._file.run(partial(_list_all, kind=kind))

    async def put(self, kind: Kind, name: str, body: Mapping[str, Any], *, expected: int | None = None) -> Stored:
        def write(connection: sqlite3.Connection) -> int:
            with transaction(connection):  # check and write in one, so that no other process writes in between
                check_expected(kind, name, expected=expected, current=_current(connection, kind, name))
                return _write(connection, kind, name, body)

        version = await self._file.run(write)
        self._wake()
        return Stored(kind, name, version, body)

    async def delete(self, kind: Kind, name: str, *, expected: int | None = None) -> None:
        def write(connection: sqlite3.Connection) -> None:
            with transaction(connection):
                current = _current(connection, kind, name)
                if not current:
                    raise ObjectNotFound(f"there is no {kind.replace('_', ' ')} {name!r}")
                check_expected(kind, name, expected=expected, current=current)
                _write(connection, kind, name, None)

        await self._file.run(write)
        self._wake()

    async def changes(self, since: int, *, timeout_s: float) -> list[Stored]:
        now_s = asyncio.get_running_loop().time
        deadline_s = now_s() + timeout_s
        while True:
            written = self._written  # before the read, so that no write falls between the two
            found = await self._file.run(partial(_changes, since=since))
            left_s = deadline_s - now_s()
            if found or left_s <= 0:
                return found
            with suppress(TimeoutError):
                async with asyncio.timeout(min(self._poll_s, left_s)):
                    await written.wait()

    async def restore(self, objects: Iterable[Stored]) -> None:
        kept = list(objects)
        await self._file.run(partial(_restore, objects=kept))
        self._wake()

    async def close(self) -> None:
        await self._file.close()

    def _wake(self) -> None:
        """Let `changes` of this process read at once."""
        written, self._written = self._written, asyncio.Event()
        written.set()


async def open_sqlite_state(path: Path, *, poll_s: float = _POLL_S) -> SqliteStateStore:
    """Open the file, creating or migrating it. Raises StartupError."""
    return SqliteStateStore(await open_sqlite(path, _MIGRATIONS), poll_s=poll_s)


def _get(connection: sqlite3.Connection, *, kind: Kind, name: str) -> Stored | None:
    rows = connection.execute(f"SELECT {_COLUMNS} FROM objects WHERE kind = ? AND name = ? AND body IS NOT NULL", (kind, name))  # noqa: S608
    return next(map(_stored, rows), None)


def _list_all(connection: sqlite3.Connection, *, kind: Kind) -> list[Stored]:
    rows = connection.execute(f"SELECT {_COLUMNS} FROM objects WHERE kind = ? AND body IS NOT NULL ORDER BY name", (kind,))  # noqa: S608
    return [_stored(row) for row in rows]


def _changes(connection: sqlite3.Connection, *, since: int) -> list[Stored]:
    query = f"SELECT {_COLUMNS} FROM objects WHERE resource_version > ? ORDER BY resource_version"  # noqa: S608
    rows = connection.execute(query, (since,)).fetchall()
    if not rows:
        check_not_older(since=since, last=_last(connection))
    return [_stored(row) for row in rows]


def _restore(connection: sqlite3.Connection, *, objects: list[Stored]) -> None:
    with transaction(connection):
        kept = {(str(stored.kind), stored.name) for stored in objects}
        for kind, name in connection.execute("SELECT kind, name FROM objects WHERE body IS NOT NULL").fetchall():
            if (kind, name) not in kept:
                _write(connection, kind, name, None)
        for stored in objects:
            _write(connection, stored.kind, stored.name, stored.body)


def _current(connection: sqlite3.Connection, kind: Kind, name: str) -> int:
    found = _get(connection, kind=kind, name=name)
    return found.resource_version if found is not None else 0


def _last(connection: sqlite3.Connection) -> int:
    (last,) = connection.execute("SELECT ifnull(max(resource_version), 0) FROM objects").fetchone()
    return int(last)


def _write(connection: sqlite3.Connection, kind: str, name: str, body: Mapping[str, Any] | None) -> int:
    version = _last(connection) + 1
    text = orjson.dumps(body).decode() if body is not None else None
    connection.execute(f"INSERT OR REPLACE INTO objects ({_COLUMNS}) VALUES (?, ?, ?, ?)", (kind, name, version, text))  # noqa: S608
    return version


def _stored(row: _Row) -> Stored:
    kind, name, version, body = row
    return Stored(kind_named(kind), name, version, orjson.loads(body) if body is not None else None)
