"""SQLite database on a thread of its own, so that the event loop never waits for the disk.

Survives `kill -9` and a loss of power: what `run` has returned is on disk (WAL, synchronous=FULL). What many
callers want at the same time is committed together, since a commit waits for the disk, whatever is in it. Several
processes may have the same file open; each waits at most `_BUSY_S` for another's write.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from control_plane.core.errors import StartupError, StoreUnavailable

ItemT = TypeVar("ItemT")
T = TypeVar("T")

_BUSY_S = 5.0
_AT_ONCE = 64
"""Works that are committed together at most: other processes wait for their turn meanwhile."""

Migrations = Sequence[Sequence[str]]
"""For each layout of the database the statements that make it from the one before; the first from an empty
file."""


class _Connection(sqlite3.Connection):
    """Connection that may have one transaction for several works, each a savepoint of it."""

    is_grouped = False


_ALONE = object()


@dataclass(slots=True, eq=False)
class _Work:
    """Something to do on the database, and what came of it."""

    do: Callable[..., Any]
    done: asyncio.Future[Any]
    item: Any = _ALONE
    """The caller's own part of a work that several callers share, such as the job that it adds."""
    result: Any = None
    error: BaseException | None = None

    def tell(self) -> None:
        """Tell the caller; on the event loop."""
        if self.done.done():  # he has left
            return
        if self.error is None:
            self.done.set_result(self.result)
        else:
            self.done.set_exception(self.error)


class _Thread:
    """Thread that makes one call after another. An executor would make a future with a lock of its own for each of them."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def call(self, function: Callable[[], object]) -> None:
        """Have a function called, which must not raise."""
        self._calls.put(function)

    async def run(self, function: Callable[[], T]) -> T:
        """Return what a function returns, or raise what it raises, after all calls before."""
        loop = asyncio.get_running_loop()
        work = _Work(function, loop.create_future())
        self.call(partial(_do_alone, work, loop))
        result: T = await work.done
        return result

    def end(self) -> None:
        """End it after all calls before. Idempotent."""
        self._calls.put(None)

    def _serve(self) -> None:
        while (function := self._calls.get()) is not None:
            function()


class SqliteFile:
    """An open SQLite database with its thread; made by `open_sqlite`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = _Thread(path.name)
        self._connection: _Connection | None = None
        self._waiting: deque[_Work] = deque()
        self._is_asked = False
        """Whether the thread was asked to do what waits, and has not begun."""
        self._later: asyncio.TimerHandle | None = None

    async def open(self, migrations: Migrations) -> None:
        """Open the file and migrate it. Raises StartupError if it cannot be used, or a newer tidegate wrote
        it.
        """
        try:
            self._connection = await self._thread.run(partial(_open, self._path, migrations))
        except (sqlite3.Error, OSError) as exc:
            raise StartupError(f"{self._path} cannot be used: {exc}; choose another --state-dir, or restore a backup there") from exc

    async def run(self, work: Callable[[sqlite3.Connection], T], *, patience_s: float = 0.0) -> T:
        """Run `work` on the database's thread, after all work given before; within `patience_s` it waits for others to be
        committed with.

        If the caller is cancelled, the work may be done all the same. Raises StoreUnavailable.
        """
        result: T = await self._run(work, _ALONE, patience_s)
        return result

    async def run_with_others(
        self, work: Callable[[sqlite3.Connection, Sequence[ItemT]], Sequence[T | Exception]], item: ItemT, *, patience_s: float
    ) -> T:
        """Run `work` once for this item and those of others who wait for the same function, as `run` does; it returns for
        each what came of it, or the error that its caller gets. What it raises all of them get.
        """
        result: T = await self._run(work, item, patience_s)
        return result

    async def _run(self, work: Callable[..., Any], item: Any, patience_s: float) -> Any:
        if self._connection is None:
            raise StoreUnavailable(f"{self._path.name} is closed")
        loop = asyncio.get_running_loop()
        given = _Work(work, loop.create_future(), item)
        self._waiting.append(given)
        if not self._is_asked:
            if not patience_s:
                self._ask(loop)
            elif self._later is None:
                self._later = loop.call_later(patience_s, self._ask, loop)
        try:
            return await given.done
        except sqlite3.Error as exc:
            is_full = getattr(exc, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
            # By its name alone: callers of jobs read this, and need not know the machine's folders.
            raise StoreUnavailable(f"{self._path.name}: {exc}", is_full=is_full) from exc

    async def close(self) -> None:
        """Close the database after all work given before. Idempotent."""
        connection = self._connection
        if self._waiting and not self._is_asked:
            self._ask(asyncio.get_running_loop())
        self._connection = None
        try:
            if connection is not None:
                await self._thread.run(connection.close)
        finally:
            self._thread.end()

    def _ask(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ask the thread to do what waits."""
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self._connection is not None:
            self._is_asked = True
            self._thread.call(partial(self._work_off, self._connection, loop))

    def _work_off(self, connection: _Connection, loop: asyncio.AbstractEventLoop) -> None:
        """Do what waits, as much at once as there is; on the database's thread."""
        self._is_asked = False  # before it looks: what is given from now on asks again
        while works := [self._waiting.popleft() for _ in range(min(len(self._waiting), _AT_ONCE))]:
            _do_together(connection, works)
            _tell_all(works, loop)


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
    """Run the block as one transaction, during which no other process writes. In a work of `SqliteFile.run` it is
    committed with others', before its caller is told.
    """
    if not connection.in_transaction:
        connection.execute("BEGIN IMMEDIATE")  # takes the write lock now: to upgrade a read lock later can fail at once
    is_grouped = isinstance(connection, _Connection) and connection.is_grouped
    if is_grouped:
        connection.execute("SAVEPOINT work")
    try:
        yield
        connection.execute("RELEASE work" if is_grouped else "COMMIT")
    except BaseException:
        if connection.in_transaction:  # on a full disk SQLite has rolled back by itself
            connection.execute("ROLLBACK TO work" if is_grouped else "ROLLBACK")
        raise


def _do_alone(work: _Work, loop: asyncio.AbstractEventLoop) -> None:
    try:
        work.result = work.do()
    except BaseException as exc:  # told to who asked for it
        work.error = exc
    _tell_all((work,), loop)


def _tell_all(works: Sequence[_Work], loop: asyncio.AbstractEventLoop) -> None:
    with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
        loop.call_soon_threadsafe(_tell, works)


def _tell(works: Sequence[_Work]) -> None:
    for work in works:
        work.tell()


def _do_together(connection: _Connection, works: Sequence[_Work]) -> None:
    """Do works in one transaction. One that fails leaves the others as they are; where the transaction itself fails,
    all of them have failed.
    """
    connection.is_grouped = True
    done: list[_Work] = []
    try:
        for group in _groups(works):
            was_open = connection.in_transaction
            try:
                _carry_out(connection, group)
            except BaseException as exc:  # told to who asked for it
                _fail(group, exc)
                if was_open and not connection.in_transaction:
                    _fail(done, exc)
            done += group
        if connection.in_transaction:
            connection.execute("COMMIT")
    except BaseException as exc:
        _fail(works, exc)
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    finally:
        connection.is_grouped = False


def _groups(works: Sequence[_Work]) -> Iterable[Sequence[_Work]]:
    """Return the works in their order, those that are done for several items at once beside the first of them."""
    groups: dict[object, list[_Work]] = {}
    for work in works:
        groups.setdefault(work if work.item is _ALONE else work.do, []).append(work)
    return groups.values()


def _carry_out(connection: _Connection, group: Sequence[_Work]) -> None:
    first = group[0]
    if first.item is _ALONE:
        first.result = first.do(connection)
        return
    for work, outcome in zip(group, first.do(connection, [work.item for work in group]), strict=True):
        if isinstance(outcome, Exception):
            work.error = outcome
        else:
            work.result = outcome


def _fail(works: Sequence[_Work], why: BaseException) -> None:
    for work in works:
        work.error = work.error or why


def _open(path: Path, migrations: Migrations) -> _Connection:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with opened_alone(path.parent):
        # Created before SQLite does, to set its mode. Not by open(): closing a descriptor of the file drops all
        # POSIX locks that this process holds on it, also those of another connection.
        with contextlib.suppress(FileExistsError):
            os.mknod(path, mode=0o600)
        return _connect(path, migrations)


def _connect(path: Path, migrations: Migrations) -> _Connection:
    connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False, factory=_Connection)
    try:
        connection.execute("PRAGMA synchronous = FULL")
        with transaction(connection):
            _migrate(connection, path, migrations)
        connection.execute("PRAGMA journal_mode = WAL")
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def opened_alone(folder: Path) -> Iterator[None]:
    """Keep other processes from opening databases of this folder during the block, or for `_BUSY_S` where one that does so
    is held still.

    Of two that make the same file or set its mode one fails: there SQLite does not wait. And what one does to files by
    their names, such as putting a damaged one aside, is not to be done to another's.
    """
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        until_s = time.monotonic() + _BUSY_S
        while _is_held(lock) and time.monotonic() < until_s:
            time.sleep(0.002)
        yield
    finally:
        os.close(lock)


def _is_held(lock: int) -> bool:
    """Lock it, or say that another process has."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # such as NFS, where folders cannot be locked: opened as if alone there
        return False
    return False


def _migrate(connection: sqlite3.Connection, path: Path, migrations: Migrations) -> None:
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    if found > len(migrations):
        raise StartupError(f"{path} was written by a newer tidegate (layout {found}; this one knows {len(migrations)}): upgrade this one")
    for statements in migrations[found:]:
        for statement in statements:
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {len(migrations)}")
