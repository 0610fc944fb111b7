"""SQLite database on a thread of its own, so that the event loop never waits for the disk.

Survives `kill -9` and a loss of power: what `run` has returned is on disk (WAL, synchronous=FULL). Several
processes may have the same file open; each waits at most `_BUSY_S` for another's write.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from control_plane.core.errors import StartupError, StoreUnavailable

T = TypeVar("T")

_BUSY_S = 5.0

Migrations = Sequence[Sequence[str]]
"""For each layout of the database the statements that make it from the one before; the first from an empty
file."""


class SqliteFile:
    """An open SQLite database with its thread; made by `open_sqlite`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=path.name)
        self._connection: sqlite3.Connection | None = None

    async def open(self, migrations: Migrations) -> None:
        """Open the file and migrate it. Raises StartupError if it cannot be used, or a newer tidegate wrote
        it.
        """
        try:
            self._connection = await asyncio.get_running_loop().run_in_executor(self._thread, _open, self._path, migrations)
        except (sqlite3.Error, OSError) as exc:
            raise StartupError(f"{self._path} cannot be used: {exc}; choose another --state-dir, or restore a backup there") from exc

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` on the database's thread, after all work given before.

        If the caller is cancelled, the work may be done all the same. Raises StoreUnavailable.
        """
        if self._connection is None:
            raise StoreUnavailable(f"{self._path} is closed")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, self._connection)
        except sqlite3.Error as exc:
            is_full = getattr(exc, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
            raise StoreUnavailable(f"{self._path}: {exc}", is_full=is_full) from exc

    async def close(self) -> None:
        """Close the database after all work given before. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, connection.close)
        self._thread.shutdown(wait=False)


async def open_sqlite(path: Path, migrations: Migrations) -> SqliteFile:
    """Open the database, create it if it is missing, and migrate it to the newest layout. Raises
    StartupError.
    """
    file = SqliteFile(path)
    try:
        await file.open(migrations)
    except BaseException:
        await file.close()
        raise
    return file


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run the block as one transaction, during which no other process writes."""
    connection.execute("BEGIN IMMEDIATE")  # takes the write lock now: to upgrade a read lock later can fail at once
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # on a full disk SQLite has rolled back by itself
            connection.execute("ROLLBACK")
        raise


def _open(path: Path, migrations: Migrations) -> sqlite3.Connection:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Created before SQLite does, to set its mode. Not by open(): closing a descriptor of the file drops all
    # POSIX locks that this process holds on it, also those of another connection.
    with contextlib.suppress(FileExistsError):
        os.mknod(path, mode=0o600)
    connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA synchronous = FULL")
        with transaction(connection):
            _migrate(connection, path, migrations)
        connection.execute("PRAGMA journal_mode = WAL")
    except BaseException:
        connection.close()
        raise
    return connection


def _migrate(connection: sqlite3.Connection, path: Path, migrations: Migrations) -> None:
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    if found > len(migrations):
        raise StartupError(f"{path} was written by a newer tidegate (layout {found}; this one knows {len(migrations)}): upgrade this one")
    for statements in migrations[found:]:
        for statement in statements:
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {len(migrations)}")
