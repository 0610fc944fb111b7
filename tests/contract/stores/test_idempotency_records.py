"""What every `admin/idempotency/ports.IdempotencyRecords` does, and its fake."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from pydantic import SecretStr

from control_plane.admin.idempotency.adapters.redis_records import make_redis_records
from control_plane.admin.idempotency.adapters.sqlite_records import open_sqlite_records
from control_plane.admin.idempotency.ports import KEEP_S, MOST, MOST_OF_CALLER, IdempotencyRecords, Record
from control_plane.app.stores import open_idempotency_records
from control_plane.core.errors import LimitExceeded, Overloaded, StoreUnavailable
from tests.contract.stores.stores import NAMES, Opening, address, empty_redis, handles
from tests.fakes.stores.idempotency_records import FakeIdempotencyRecords
from tests.redis_server import RedisServer


@pytest.fixture(params=NAMES)
def opening(request: pytest.FixtureRequest, tmp_path: Path) -> Opening[IdempotencyRecords]:
    shared = FakeIdempotencyRecords()
    where = address(request.param, request, tmp_path)

    async def open_one() -> IdempotencyRecords:
        return shared if request.param == "fake" else await open_idempotency_records(*where)

    return open_one


async def test_the_first_of_all_gateways_makes_the_record_and_the_others_find_it(opening: Opening[IdempotencyRecords]) -> None:
    async with handles(opening, 2) as (one, other):
        found = await asyncio.gather(*(each.begin("c.n", "d") for each in (one, other) for _ in range(4)))
        assert (found.count(None), found.count(Record("d"))) == (1, 7)
        await one.answer("c.n", "d", "a b")
        assert await other.begin("c.n", "another") == Record("d", "a b")
        assert await other.begin("c.m", "d") is None


async def test_only_the_record_of_that_request_is_answered_and_forgotten(opening: Opening[IdempotencyRecords]) -> None:
    async with handles(opening, 1) as (records,):
        await records.answer("c.n", "d", "of none")
        assert await records.begin("c.n", "d") is None
        await records.answer("c.n", "another", "x")
        await records.forget("c.n", "another")
        await records.forget("c.m", "d")
        assert await records.begin("c.n", "d") == Record("d")
        await records.answer("c.n", "d", "first")
        await records.answer("c.n", "d", "second")
        await records.forget("c.n", "d")
        assert await records.begin("c.n", "d") == Record("d", "first"), "what is done is not undone"


async def test_what_was_not_done_may_be_done_again(opening: Opening[IdempotencyRecords]) -> None:
    async with handles(opening, 2) as (one, other):
        assert await one.begin("c.n", "d") is None
        await one.forget("c.n", "d")
        assert await other.begin("c.n", "d") is None


async def test_they_are_bounded_and_none_is_forgotten_before_its_time(opening: Opening[IdempotencyRecords]) -> None:
    async with handles(opening, 1) as (records,):
        for number in range(MOST):
            assert await records.begin(f"c{number % 4}.{number}", "d") is None
        with pytest.raises(Overloaded, match="1,000 idempotency keys"):
            await records.begin("c5.one more", "d")
        assert await records.begin("c0.0", "d") == Record("d")
        await records.forget("c0.0", "d")
        assert await records.begin("c5.one more", "d") is None


async def test_one_caller_leaves_room_to_the_others(opening: Opening[IdempotencyRecords]) -> None:
    async with handles(opening, 1) as (records,):
        for number in range(MOST_OF_CALLER):
            assert await records.begin(f"one.{number}", "d") is None
        with pytest.raises(LimitExceeded, match="250 idempotency keys"):
            await records.begin("one.more", "d")
        assert await records.begin("one.0", "d") == Record("d")
        assert await records.begin("on.e", "d") is None
        await records.forget("one.0", "d")
        assert await records.begin("one.more", "d") is None


async def test_sqlite_keeps_them_over_a_restart_for_their_time(tmp_path: Path) -> None:
    clock = [1000.0]

    async def opened() -> IdempotencyRecords:
        return await open_sqlite_records(tmp_path / "records.sqlite", now_s=lambda: clock[0])

    async with handles(opened, 1) as (records,):
        assert await records.begin("c.n", "d") is None
    clock[0] += KEEP_S - 1.0
    async with handles(opened, 1) as (records,):
        assert await records.begin("c.n", "d") == Record("d")
        clock[0] += 1.0
        assert await records.begin("c.n", "d") is None
        clock[0] -= 1.0
        assert await records.begin("c.n", "d") is None, "it was written before the clock was set back"
    assert (tmp_path / "records.sqlite").stat().st_mode & 0o077 == 0


def test_redis_keeps_them_for_their_time(request: pytest.FixtureRequest) -> None:
    server = empty_redis(request)
    now_ms = 1000 * int(time.time())  # Redis is on this machine
    # As if they had been written before, and before the clock was set back: nobody waits ten minutes for it here.
    for name, until_ms in (("c.old", now_ms - 1000), ("c.future", now_ms + 5000 + 1000 * int(KEEP_S)), ("c.now", now_ms + 60_000)):
        server.call("HSET", "tidegate:admin:records", name, "d answer")
        server.call("ZADD", "tidegate:admin:records:until", str(until_ms), name)
    found = asyncio.run(_begin_each(server, "c.old", "c.future", "c.now"))
    assert found == [None, None, Record("d", "answer")]
    for key in ("tidegate:admin:records", "tidegate:admin:records:until"):
        assert 0 < int(server.call("PTTL", key).strip(b":\r\n")) <= 1000 * KEEP_S


async def _begin_each(server: RedisServer, *names: str) -> list[Record | None]:
    records = make_redis_records(SecretStr(server.url))
    try:
        return [await records.begin(name, "d") for name in names]
    finally:
        await records.close()


async def test_a_redis_that_is_gone_is_unavailable() -> None:
    records = make_redis_records(SecretStr("redis://127.0.0.1:1"))
    for call in (records.begin("c.n", "d"), records.answer("c.n", "d", "a"), records.forget("c.n", "d")):
        with pytest.raises(StoreUnavailable):
            await call
    await records.close()
