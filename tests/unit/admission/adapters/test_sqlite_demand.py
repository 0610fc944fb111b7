"""SQLite demand board: its clock and its files, which the contract suite of all boards does not test."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from pathlib import Path

import pytest

from control_plane.admission.adapters.sqlite_demand import SqliteDemandBoard, open_sqlite_demand
from control_plane.admission.domain.demand import LIVE_S, Exchange
from control_plane.core.errors import StartupError, StoreUnavailable
from control_plane.storage.sqlite import opened_alone
from tests.aio import run


@pytest.mark.parametrize(
    ("age_s", "is_live"),
    [
        pytest.param(0.0, True, id="now"),
        pytest.param(LIVE_S, True, id="just still"),
        pytest.param(LIVE_S + 0.01, False, id="silent too long"),
        pytest.param(-0.01, False, id="before a reboot, which sets the clock to 0"),
    ],
)
async def test_a_process_counts_for_some_seconds_of_one_clock(tmp_path: Path, age_s: float, is_live: bool) -> None:
    path, clock = tmp_path / "demand.sqlite", [1000.0]
    opened = await open_sqlite_demand(path)
    board = SqliteDemandBoard(opened._file, now_s=lambda: clock[0])
    await board.exchange("p1", {"a": 1.0})
    clock[0] += age_s
    assert await board.exchange("p2", {}) == (Exchange({"a": 1.0}, 2) if is_live else Exchange({}, 1))
    await board.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM processes").fetchone() == (2 if is_live else 1,)
    connection.close()


async def test_it_is_its_owners_alone_and_syncs_nothing_for_a_write(tmp_path: Path) -> None:
    board = await open_sqlite_demand(tmp_path / "demand.sqlite")
    assert (tmp_path / "demand.sqlite").stat().st_mode & 0o777 == 0o600
    assert await board._file.run(lambda connection: connection.execute("PRAGMA synchronous").fetchone()) == (1,)
    assert await board._file.run(lambda connection: connection.execute("PRAGMA journal_mode").fetchone()) == ("wal",)
    await board.close()
    with pytest.raises(StoreUnavailable, match=r"demand\.sqlite is closed"):
        await board.exchange("p1", {})


@pytest.mark.parametrize("content", [b"some words, and no database at all\n" * 100, b"SQLite format 3\0" + bytes(4096)])
async def test_what_is_no_board_is_put_aside_and_begun_anew(tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "demand.sqlite"
    path.write_bytes(content)
    (tmp_path / "demand.sqlite-wal").write_bytes(b"of the other one")
    board, *others = await asyncio.gather(*(open_sqlite_demand(path) for _ in range(4)))
    assert await board.exchange("p1", {"a": 1.0}) == Exchange({"a": 1.0}, 1)
    assert (tmp_path / "demand.sqlite.damaged").read_bytes() == content
    (told,) = [record for record in caplog.records if "put aside" in record.message]
    assert told.levelname == "WARNING"
    for each in (board, *others):
        await each.close()


async def test_who_opens_it_waits_for_another_process_that_puts_it_aside(tmp_path: Path) -> None:
    path = tmp_path / "demand.sqlite"
    path.mkdir()  # it cannot be opened
    with opened_alone(tmp_path):  # as the other process does
        opening = asyncio.get_running_loop().run_in_executor(None, lambda: asyncio.run(_open_and_close(path)))
        while not opening.done() and _openings(tmp_path) < 2:
            await asyncio.sleep(0.001)
        path.rmdir()
    await opening
    assert path.is_file()


def _openings(folder: Path) -> int:
    """How many descriptors this process has of the folder."""
    return sum(os.path.realpath(each) == str(folder.resolve()) for each in Path("/proc/self/fd").iterdir())


async def _open_and_close(path: Path) -> None:
    await (await open_sqlite_demand(path)).close()


def test_what_cannot_be_opened_at_all_is_refused(tmp_path: Path) -> None:
    (tmp_path / "demand.sqlite").mkdir()
    with pytest.raises(StartupError, match=r"demand\.sqlite cannot be used"):
        run(open_sqlite_demand(tmp_path / "demand.sqlite"))
