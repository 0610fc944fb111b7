"""What every `audit/ports.AuditLog` does, and so does the fake."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from control_plane.app.stores import open_audit_log
from control_plane.audit.domain.entry import Actor, Change, Entry, change_of, verify
from control_plane.audit.ports import AuditLog
from control_plane.core.errors import StoreUnavailable
from tests.contract.stores.stores import NAMES, Opening, address, empty_redis, handles
from tests.fakes.stores.audit_log import FakeAuditLog

WRITERS, EACH = 4, 10
AT_ONCE = 32


@pytest.fixture(params=NAMES)
def opening(request: pytest.FixtureRequest, tmp_path: Path) -> Opening[AuditLog]:
    if request.param == "fake":
        entries: list[Entry] = []

        async def open_fake() -> AuditLog:
            return FakeAuditLog(entries)

        return open_fake
    where = address(request.param, request, tmp_path)
    return lambda: open_audit_log(*where)


def change(name: str = "x") -> Change:
    return change_of(Actor("me", "schön"), "replace", "tenant", name, before={"weight": 0.1, "limit": None}, after={"tenants": ["a", "ü"]})


async def test_it_is_empty_at_first(opening: Opening[AuditLog]) -> None:
    async with handles(opening, 1) as (log,):
        assert (await log.page(0, limit=10), await log.newest()) == ([], 0)


async def test_what_is_appended_is_read_by_pages_also_by_others(opening: Opening[AuditLog]) -> None:
    async with handles(opening, 2) as (log, other):
        written = [await log.append(change(f"t{number}")) for number in range(5)]
        assert await other.page(0, limit=10) == written
        assert await other.page(1, limit=2) == written[1:3]
        assert await other.page(5, limit=2) == await other.page(99, limit=2) == []
        assert await other.newest() == 5
        assert verify(await other.page(0, limit=10)) == written[-1]


async def test_it_goes_on_after_a_restart(opening: Opening[AuditLog]) -> None:
    async with handles(opening, 1) as (log,):
        await log.append(change())
    async with handles(opening, 1) as (log,):
        await log.append(change())
        newest = verify(await log.page(0, limit=10))
    assert newest is not None
    assert newest.number == 2


async def test_those_who_append_at_once_make_one_chain(opening: Opening[AuditLog]) -> None:
    async with handles(opening, WRITERS) as logs:

        async def write(writer: int, log: AuditLog) -> None:
            for number in range(EACH):
                await log.append(change(f"w{writer}-{number}"))

        await asyncio.gather(*(write(writer, log) for writer, log in enumerate(logs)))
        found = await logs[0].page(0, limit=1000)
    verify(found)
    names = [entry.change.name for entry in found]
    assert len(set(names)) == len(names) == WRITERS * EACH
    # Each writer's own entries are in the order in which it wrote them.
    assert all(
        [name for name in names if name.startswith(f"w{writer}-")] == [f"w{writer}-{n}" for n in range(EACH)] for writer in range(WRITERS)
    )


async def test_no_writer_of_a_process_loses_to_its_others(opening: Opening[AuditLog]) -> None:
    """If all tried at once, one of so many would by chance lose each of its tries."""
    async with handles(opening, 1) as (log,):

        async def write() -> None:
            for _ in range(EACH):
                await log.append(change())

        await asyncio.gather(*(write() for _ in range(AT_ONCE)))
        assert await log.newest() == AT_ONCE * EACH


async def test_redis_keeps_the_newest_and_their_numbers(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    where = address("redis", request, tmp_path)
    async with handles(lambda: open_audit_log(*where, keep=3), 2) as (log, other):
        written = [await (log, other)[number % 2].append(change(f"t{number}")) for number in range(8)]
        kept = written[-3:]
        assert [entry.number for entry in kept] == [6, 7, 8]
        assert await log.page(0, limit=10) == await other.page(5, limit=10) == kept
        assert await log.page(6, limit=1) == kept[1:2]
        assert await log.page(8, limit=10) == await log.page(2**53, limit=10) == []
        assert await log.newest() == 8
        assert verify(kept[1:], kept[0]) == written[-1]


async def test_a_long_log_is_shortened_by_and_by(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    where = address("redis", request, tmp_path)
    async with handles(lambda: open_audit_log(*where), 1) as (log,):
        for _ in range(1005):
            await log.append(change())
    async with handles(lambda: open_audit_log(*where, keep=2), 1) as (log,):
        lengths = []
        for _ in range(2):
            await log.append(change())
            lengths.append(len(await log.page(0, limit=2000)))
        assert lengths == [6, 2]
        assert await log.newest() == 1007


async def test_a_file_refuses_that_an_entry_is_changed_or_deleted(tmp_path: Path) -> None:
    async with handles(lambda: open_audit_log(None, tmp_path), 1) as (log,):
        await log.append(change())
    with closing(sqlite3.connect(tmp_path / "audit.sqlite")) as file:
        for statement in ("UPDATE entries SET entry = ''", "DELETE FROM entries"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                file.execute(statement)
    assert (tmp_path / "audit.sqlite").stat().st_mode & 0o077 == 0


async def test_one_that_is_away_says_so(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    log = await open_audit_log(*address("redis", request, tmp_path))
    try:
        server = empty_redis(request)
        server.call("SET", "tidegate:audit:entries", "something else")
        with pytest.raises(StoreUnavailable):
            await log.append(change())
    finally:
        await log.close()
