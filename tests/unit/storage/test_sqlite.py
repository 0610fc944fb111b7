from __future__ import annotations

import asyncio
import errno
import fcntl
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from control_plane.core.errors import StartupError, StoreUnavailable
from control_plane.storage import sqlite
from control_plane.storage.sqlite import open_sqlite, opened_alone, transaction
from tests.aio import run

FIRST = ("CREATE TABLE seen (what TEXT)", "INSERT INTO seen VALUES ('first')")
SECOND = ("INSERT INTO seen VALUES ('second')",)

_OPEN = """
import asyncio, sys
from pathlib import Path
from control_plane.storage.sqlite import open_sqlite

async def main():
    file = await open_sqlite(Path(sys.argv[1]), [("CREATE TABLE seen (what TEXT)", "INSERT INTO seen VALUES ('first')")])
    await file.close()

asyncio.run(main())
"""


def seen(connection: sqlite3.Connection) -> list[str]:
    return [what for (what,) in connection.execute("SELECT what FROM seen")]


async def opened_and_read(path: Path, *migrations: tuple[str, ...]) -> list[str]:
    file = await open_sqlite(path, migrations)
    try:
        return await file.run(seen)
    finally:
        await file.close()


def test_migrations_run_in_order_and_each_once(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    assert run(opened_and_read(path, FIRST)) == ["first"]
    assert run(opened_and_read(path, FIRST)) == ["first"]
    assert run(opened_and_read(path, FIRST, SECOND)) == ["first", "second"]
    assert run(opened_and_read(path, FIRST, SECOND)) == ["first", "second"]


def test_a_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    run(opened_and_read(path, FIRST))
    with pytest.raises(StartupError, match=r"a\.sqlite cannot be used: no such table: nowhere; choose another --state-dir"):
        run(opened_and_read(path, FIRST, (*SECOND, "INSERT INTO nowhere VALUES (1)")))
    assert run(opened_and_read(path, FIRST)) == ["first"]


def test_what_a_newer_tidegate_wrote_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    run(opened_and_read(path, FIRST, SECOND))
    with pytest.raises(StartupError, match=r"newer tidegate \(layout 2; this one knows 1\): upgrade"):
        run(opened_and_read(path, FIRST))


@pytest.mark.parametrize("content", [b"not a database, whatever its name says" * 100, b"SQLite format 3\0" + bytes(4096)])
def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.sqlite"
    path.write_bytes(content)
    with pytest.raises(StartupError, match=r"a\.sqlite cannot be used"):
        run(opened_and_read(path, FIRST))
    assert path.read_bytes() == content


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartupError, match=r"file/a\.sqlite cannot be used"):
        run(opened_and_read(tmp_path / "file" / "a.sqlite", FIRST))


async def test_only_this_user_can_read_it(tmp_path: Path) -> None:
    file = await open_sqlite(tmp_path / "deep" / "er" / "a.sqlite", [FIRST])
    await file.run(seen)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "deep" / "er").iterdir()}
    assert modes == {"a.sqlite": 0o600, "a.sqlite-wal": 0o600, "a.sqlite-shm": 0o600}
    assert (tmp_path / "deep" / "er").stat().st_mode & 0o777 == 0o700
    await file.close()


async def test_every_write_reaches_the_disk_before_it_is_acknowledged(tmp_path: Path) -> None:
    """A test cannot cut the power; these are the settings with which SQLite promises to survive it."""
    file = await open_sqlite(tmp_path / "a.sqlite", [FIRST])
    settings = [
        await file.run(lambda db, name=name: db.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("journal_mode", "synchronous")
    ]
    assert settings == ["wal", 2]
    await file.close()


def test_several_processes_may_open_a_new_one_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    processes = [subprocess.Popen([sys.executable, "-c", _OPEN, path], stderr=subprocess.PIPE, text=True) for _ in range(6)]
    assert [process.communicate(timeout=50.0)[1] for process in processes] == [""] * 6
    assert run(opened_and_read(path, FIRST)) == ["first"]


async def test_another_process_that_is_held_still_while_it_opens_one_keeps_nobody_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_BUSY_S", 0.01)
    with opened_alone(tmp_path):
        await (await open_sqlite(tmp_path / "seen.sqlite", [FIRST])).close()


async def test_a_folder_that_cannot_be_locked_is_no_hindrance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EBADF, "of NFS")

    monkeypatch.setattr(fcntl, "flock", refuse)
    await (await open_sqlite(tmp_path / "seen.sqlite", [FIRST])).close()


async def test_a_full_disk_is_told_from_a_store_that_is_away(tmp_path: Path) -> None:
    file = await open_sqlite(tmp_path / "a.sqlite", [FIRST])
    await file.run(lambda db: db.execute("PRAGMA max_page_count = 2"))  # as if the disk had no more
    for work, is_full in (("INSERT INTO seen VALUES (zeroblob(100000))", True), ("INSERT INTO nowhere VALUES (1)", False)):
        with pytest.raises(StoreUnavailable) as caught:
            await file.run(lambda db, work=work: db.execute(work))
        assert caught.value.is_full is is_full
    await file.close()


async def test_half_a_transaction_is_none(tmp_path: Path) -> None:
    def fail(connection: sqlite3.Connection) -> None:
        with transaction(connection):
            connection.execute("INSERT INTO seen VALUES ('half')")
            raise RuntimeError

    file = await open_sqlite(tmp_path / "a.sqlite", [FIRST])
    with pytest.raises(RuntimeError):
        await file.run(fail)
    assert await file.run(seen) == ["first"]
    await file.close()


async def test_a_full_disk_is_unavailable_and_what_was_there_stays(tmp_path: Path) -> None:
    def fill(connection: sqlite3.Connection) -> None:
        with transaction(connection):
            connection.execute("INSERT INTO seen VALUES (?)", ("x" * 1_000_000,))

    file = await open_sqlite(tmp_path / "a.sqlite", [FIRST])
    await file.run(lambda connection: connection.execute("PRAGMA max_page_count = 20"))
    with pytest.raises(StoreUnavailable, match=r"^a\.sqlite: database or disk is full"):
        await file.run(fill)
    assert await file.run(seen) == ["first"]
    await file.close()


async def test_another_process_that_writes_is_waited_for(tmp_path: Path) -> None:
    def write(connection: sqlite3.Connection) -> None:
        with transaction(connection):
            connection.execute("INSERT INTO seen VALUES ('second')")

    file = await open_sqlite(tmp_path / "a.sqlite", [FIRST])
    other = sqlite3.connect(tmp_path / "a.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    async with asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(file.run(write))
        await asyncio.sleep(0.2)
        assert not writing.done()
        other.execute("COMMIT")
    other.close()
    assert await file.run(seen) == ["first", "second"]
    await file.close()


async def test_after_it_is_closed_it_is_unavailable(tmp_path: Path) -> None:
    file = await open_sqlite(tmp_path / "a.sqlite", [FIRST])
    await file.close()
    await file.close()
    with pytest.raises(StoreUnavailable, match="is closed"):
        await file.run(seen)


async def test_what_many_want_at_once_is_committed_together_and_each_fails_for_itself(tmp_path: Path) -> None:
    def write(what: str) -> Callable[[sqlite3.Connection], list[str]]:
        def work(connection: sqlite3.Connection) -> list[str]:
            with transaction(connection):
                connection.execute("INSERT INTO seen VALUES (?)", (what,))
                if what == "7":
                    raise LookupError(what)
                return seen(connection)

        return work

    statements: list[str] = []
    file = await open_sqlite(tmp_path / "a.sqlite", [FIRST])
    await file.run(lambda connection: connection.set_trace_callback(statements.append))
    first = file.run(lambda connection: time.sleep(0.2))  # meanwhile the others come
    results = await asyncio.gather(first, *(file.run(write(str(number))) for number in range(20)), return_exceptions=True)
    assert [type(each) for each in results].count(LookupError) == 1
    expected = [str(number) for number in range(20) if number != 7]
    assert results[-1] == await file.run(seen) == ["first", *expected]
    assert statements.count("COMMIT") == 1
    other = sqlite3.connect(tmp_path / "a.sqlite")
    assert seen(other) == ["first", *expected], "it is on the disk"
    other.close()
    await file.close()


async def test_items_of_one_function_are_one_call_and_each_caller_gets_what_came_of_its_own(tmp_path: Path) -> None:
    calls: list[list[str]] = []

    def write(connection: sqlite3.Connection, items: Sequence[str]) -> list[str | Exception]:
        calls.append(list(items))
        with transaction(connection):
            connection.executemany("INSERT INTO seen VALUES (?)", [(item,) for item in items])
            if "broken" in items:
                raise LookupError("all of them")
        return [KeyError(item) if item == "refused" else item.upper() for item in items]

    file = await open_sqlite(tmp_path / "a.sqlite", [FIRST])

    def given(*items: str) -> Iterator[Awaitable[str]]:
        return (file.run_with_others(write, item, patience_s=60.0) for item in items)

    items = ["a", "refused", "b"]
    *told, read = await asyncio.gather(*given(*items), file.run(seen), return_exceptions=True)
    assert calls == [items]
    assert (told[0], type(told[1]), told[2]) == ("A", KeyError, "B")
    assert read == ["first", *items]

    *failed, read = await asyncio.gather(*given("c", "broken"), file.run(seen), return_exceptions=True)
    assert [type(each) for each in failed] == [LookupError, LookupError]
    assert read == ["first", *items], "nothing of a call that failed is left"
    await file.close()


async def test_who_shared_a_transaction_that_a_full_disk_ended_is_told_that_nothing_was_written(tmp_path: Path) -> None:
    def write(size: int) -> Callable[[sqlite3.Connection], None]:
        def work(connection: sqlite3.Connection) -> None:
            with transaction(connection):
                connection.execute("INSERT INTO seen VALUES (?)", ("x" * size,))

        return work

    file = await open_sqlite(tmp_path / "a.sqlite", [FIRST])
    await file.run(lambda connection: connection.execute("PRAGMA max_page_count = 20"))
    busy = file.run(lambda connection: time.sleep(0.2))
    _, *told = await asyncio.gather(busy, *(file.run(write(size)) for size in (1, 1_000_000, 2)), return_exceptions=True)
    kept = [len(each) for each in await file.run(seen)]
    assert isinstance(told[1], StoreUnavailable)
    assert kept == [5, *(size for size, each in zip((1, 1_000_000, 2), told, strict=True) if each is None)]
    await file.close()


async def test_patient_works_wait_for_each_other_and_not_longer_than_for_one_that_is_not(tmp_path: Path) -> None:
    file = await open_sqlite(tmp_path / "a.sqlite", [FIRST])
    order: list[str] = []

    def note(what: str) -> Callable[[sqlite3.Connection], bool]:
        def work(connection: sqlite3.Connection) -> bool:
            order.append(what)
            was_open = connection.in_transaction
            with transaction(connection):
                connection.execute("INSERT INTO seen VALUES (?)", (what,))
            return was_open

        return work

    async with asyncio.TaskGroup() as tasks:
        patient = [tasks.create_task(file.run(note(name), patience_s=50.0)) for name in "ab"]
        await asyncio.sleep(0)
        assert order == []
        were_open = await file.run(note("c"))

    assert order == ["a", "b", "c"]
    assert [task.result() for task in patient] + [were_open] == [False, True, True], "one transaction"
    assert await file.run(note("d"), patience_s=0.001) is False
    await file.close()


async def test_what_still_waits_is_done_before_the_end(tmp_path: Path) -> None:
    file = await open_sqlite(tmp_path / "a.sqlite", [FIRST])
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(file.run(seen, patience_s=50.0))
        await asyncio.sleep(0)
        await file.close()
    assert waiting.result() == ["first"]


@pytest.mark.parametrize(
    "migration", [pytest.param(FIRST, id="closed"), pytest.param(("INSERT INTO nowhere VALUES (1)",), id="not-opened")]
)
async def test_its_thread_ends_with_it(tmp_path: Path, migration: tuple[str, ...]) -> None:
    with suppress(StartupError):
        await (await open_sqlite(tmp_path / "a.sqlite", [migration])).close()
    while any(thread.name == "a.sqlite" for thread in threading.enumerate()):
        await asyncio.sleep(0.001)
