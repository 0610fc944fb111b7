"""What every `metering/ports.UsageStore` does, and so does the fake; for Redis also how several gateways share the counting."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from control_plane.app.stores import open_usage_store
from control_plane.metering.adapters.redis_usage import RedisUsageStore
from control_plane.metering.domain.usage import EVERY_DAY, Usage, UsageKey
from control_plane.metering.ports import UsageStore
from tests.contract.stores.stores import NAMES, Opening, address, empty_redis, handles, link
from tests.contract.stores.usage_store_bench import DAY, NEXT_DAY, ONE, STREAM, batch, counted, running, used
from tests.fakes.stores.usage_store import FakeUsage, FakeUsageStore
from tests.redis_server import RedisServer


@pytest.fixture(params=NAMES)
def opening(request: pytest.FixtureRequest, tmp_path: Path) -> Opening[UsageStore]:
    if request.param == "fake":
        usage = FakeUsage()

        async def open_fake() -> UsageStore:
            return FakeUsageStore(usage)

        return open_fake
    where = address(request.param, request, tmp_path)
    return lambda: open_usage_store(*where)


@pytest.fixture
def server(request: pytest.FixtureRequest) -> RedisServer:
    return empty_redis(request)


async def totals(store: UsageStore, since_day: str = EVERY_DAY[0], until_day: str = EVERY_DAY[1]) -> list[tuple[UsageKey, Usage]]:
    return await store.totals(since_day=since_day, until_day=until_day)


async def test_usage_is_summed_by_day_tenant_and_model(opening: Opening[UsageStore]) -> None:
    first = batch(used(), used(usage=Usage(requests=1, rows=3, elements=10, cache_hits=1)), used(tenant="b"), used(NEXT_DAY, model="n"))
    second = batch(used(usage=Usage(failed=1, refused=1, rows=2, elements=20, compute_units=1.5, input_tokens=8, output_tokens=9)))

    async with handles(opening, 2) as stores, running(*stores):
        await stores[0].add(first)
        await stores[1].add(second)
        for store in stores:
            assert await totals(store) == [
                (UsageKey(DAY, "a", "m"), Usage(2, 1, 1, 7, 40, 2.0, 1, 8, 9)),
                (UsageKey(DAY, "b", "m"), ONE),
                (UsageKey(NEXT_DAY, "a", "n"), ONE),
            ]


async def test_of_several_batches_at_once_each_counts_once(opening: Opening[UsageStore]) -> None:
    one, two, three = batch(used(), used(model="n")), batch(used()), batch(used(tenant="b"))
    async with handles(opening, 1) as stores, running(*stores):
        (store,) = stores
        await store.add(two)
        await store.add_all([one, two])
        await store.add_all([one, three, three])
        await store.add_all([])
        assert await totals(store) == [used(usage=ONE + ONE), used(model="n"), used(tenant="b")]


async def test_nothing_is_nothing(opening: Opening[UsageStore]) -> None:
    async with handles(opening, 1) as (store,), running(store):
        assert await totals(store) == []
        await store.add(batch())
        assert await totals(store) == []


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        pytest.param(0, 4, [0, 1, 2, 3, 4], id="all"),
        pytest.param(1, 3, [1, 2, 3], id="both-ends-included"),
        pytest.param(2, 2, [2], id="one-day"),
        pytest.param(3, 1, [], id="backwards"),
    ],
)
async def test_totals_are_of_the_days_asked_for(opening: Opening[UsageStore], since: int, until: int, expected: list[int]) -> None:
    days = [f"2023-11-{15 + number}" for number in range(5)]

    async with handles(opening, 1) as (store,), running(store):
        for number in (3, 0, 4, 1, 2):
            await store.add(batch(used(days[number])))
        assert [key.day for key, _ in await totals(store, days[since], days[until])] == [days[number] for number in expected]


async def test_odd_names_and_large_numbers_come_back(opening: Opening[UsageStore]) -> None:
    odd = (UsageKey(DAY, 'größe \0["', "a b/%s"), Usage(rows=2**31, elements=2**61, compute_units=1e-7))

    async with handles(opening, 1) as (store,), running(store):
        await store.add(batch(odd))
        await store.add(batch(odd))
        ((key, usage),) = await totals(store)
        assert key == odd[0]
        assert (usage.rows, usage.elements) == (2**32, 2**62)
        assert usage.compute_units == pytest.approx(2e-7)


async def test_a_batch_that_is_sent_again_counts_once(opening: Opening[UsageStore]) -> None:
    sent = [batch(used(), used()) for _ in range(10)]

    async with handles(opening, 2) as stores, running(*stores):
        await asyncio.gather(*(stores[number % 2].add(one) for number in range(5) for one in sent))
        await stores[1].add(sent[0])
        ((_, usage),) = await totals(stores[0])
        assert usage.requests == 20


async def test_after_a_restore_it_holds_that_and_nothing_else(opening: Opening[UsageStore]) -> None:
    kept = [
        (UsageKey("2020-02-29", "a", "m"), Usage(1, 2, 3, 4, 5, 6.25, 7, 8, 9)),
        (UsageKey("2020-03-01", "b", "n"), Usage(requests=1, compute_units=3.0)),
    ]

    async with handles(opening, 2) as (one, other), running(one, other):
        await one.add(batch(used()))
        await one.restore(kept)
        assert await totals(other) == kept
        await other.add(batch(used(tenant="new")))
        assert [key.tenant for key, _ in await totals(one)] == ["a", "b", "new"]


async def test_a_restore_of_many_sums_is_whole(opening: Opening[UsageStore]) -> None:
    kept = [
        (UsageKey(f"20{year}-01-01", f"t{number}", "m"), Usage(1, 2, 3, 4, 5, 6.5, 7)) for year in range(10, 30) for number in range(100)
    ]

    async with handles(opening, 1) as (store,):
        await store.restore(kept)
        assert dict(await totals(store)) == dict(kept)


async def test_redis_counts_every_batch_once_with_several_gateways(server: RedisServer) -> None:
    sent = [batch(*(used(tenant=f"t{number % 3}") for number in range(50))) for _ in range(40)]

    async def opening() -> RedisUsageStore:
        return RedisUsageStore(link(server), abandoned_s=0.1)  # so short that each often takes what the other is at

    async with handles(opening, 3) as stores, running(*stores):
        await asyncio.gather(*(stores[number % 3].add(one) for number, one in enumerate(sent * 2)))
        during = await totals(stores[0])
        await counted(server)
        assert await totals(stores[0]) == during
        assert [usage.requests for _, usage in during] == [680, 680, 640]


async def test_redis_has_the_same_totals_before_during_and_after_counting(server: RedisServer) -> None:
    async with handles(lambda: _open(server), 2) as (one, other):
        for number in range(30):
            await one.add(batch(used((DAY, NEXT_DAY)[number % 2])))
        before = await totals(one)
        assert [usage.requests for _, usage in before] == [15, 15]
        async with running(one):
            while server.call("XLEN", STREAM) != b":0\r\n":
                assert await totals(other) == before
        assert await totals(other) == before
        assert await totals(other, DAY, DAY) == before[:1]


async def test_redis_keeps_nothing_on_the_stream_that_is_counted(server: RedisServer) -> None:
    async with handles(lambda: _open(server), 1) as (store,), running(store):
        for _ in range(5):
            await store.add(batch(used()))
            await store.add(batch())
            await counted(server)
    assert server.call("XPENDING", STREAM, "gateways").startswith(b"*4\r\n:0\r\n")


async def test_what_a_gateway_took_before_it_died_is_counted_by_another(server: RedisServer) -> None:
    async def opening() -> RedisUsageStore:
        return RedisUsageStore(link(server), abandoned_s=0.3)

    async with handles(opening, 2) as (one, other):
        async with running(one):
            await one.add(batch(used()))
            await counted(server)
        for _ in range(3):
            await one.add(batch(used()))
        taken = server.call("XREADGROUP", "GROUP", "gateways", "the-dead-one", "COUNT", "2", "STREAMS", STREAM, ">")
        assert taken.count(b"batch") == 2
        async with running(other):
            await counted(server)
        ((_, usage),) = await totals(other)
        assert usage.requests == 4


async def test_one_that_wakes_after_another_has_taken_over_does_not_count_again(server: RedisServer) -> None:
    async with handles(lambda: _open(server), 2) as (one, other):
        await one._make_group()
        await one.add(batch(used()))
        ((place, fields),) = await one._take()
        await other._count(place, fields)
        await one._count(place, fields)
        ((_, usage),) = await totals(one)
        assert usage.requests == 1


async def test_what_was_taken_before_a_restore_is_not_counted_after_it(server: RedisServer) -> None:
    async with handles(lambda: _open(server), 1) as (store,):
        assert isinstance(store, RedisUsageStore)
        await store._make_group()
        await store.add(batch(used()))
        ((place, fields),) = await store._take()
        await store.restore([])
        await store._count(place, fields)
        assert await totals(store) == []
        async with running(store):  # the stream is made anew
            await store.add(batch(used()))
            await counted(server)
        ((_, usage),) = await totals(store)
        assert usage.requests == 1


async def test_a_batch_that_cannot_be_read_stays_and_holds_nobody_up(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    async with handles(lambda: _open(server), 1) as (store,):
        server.call("XADD", STREAM, "*", "batch", '{"of": "the future"}')
        server.call("XADD", STREAM, "*", "batch", '{"id": "of the past", "events": []}')
        server.call("XADD", STREAM, "*", "something", "else", "and", "more")
        async with running(store):
            await store.add(batch(used()))
            async with asyncio.timeout(100.0):
                while server.call("XLEN", STREAM) != b":3\r\n":
                    await asyncio.sleep(0.02)
        ((_, usage),) = await totals(store)
        assert usage.requests == 1
    assert caplog.text.count("cannot be read, and is left there") >= 3


async def test_redis_removes_the_days_that_are_not_kept(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    days = ["2022-11-16", "2023-11-14", "2023-11-15", "2023-11-16"]
    monkeypatch.setattr("control_plane.metering.adapters.redis_usage.time", SimpleNamespace(time=lambda: 1_700_100_000.0))
    async with handles(lambda: _open(server, keep_days=2), 1) as (store,):
        await store.restore([used(day) for day in days])
        async with running(store), asyncio.timeout(100.0):
            while len(found := await totals(store)) > 2:
                await asyncio.sleep(0.02)
    assert [key.day for key, _ in found] == days[2:]
    assert [server.call("EXISTS", f"tidegate:usage:sums:{day}") for day in days] == [b":0\r\n"] * 2 + [b":1\r\n"] * 2


async def _open(server: RedisServer, keep_days: int | None = None) -> RedisUsageStore:
    return RedisUsageStore(link(server), keep_days=keep_days)


async def test_each_sum_that_is_added_is_recorded_once_in_its_order(opening: Opening[UsageStore]) -> None:
    one, two = batch(used(), used(tenant='größe \0["')), batch(used(NEXT_DAY, usage=Usage(failed=1, compute_units=1e-7)))
    async with handles(opening, 2) as stores, running(*stores):
        assert (await stores[0].newest_record(), await stores[0].recorded(0, limit=9)) == (0, [])
        await stores[0].add(one)
        await stores[1].add_all([one, two, two, batch()])
        found = await stores[1].recorded(0, limit=9)
        assert [(each.number, each.id, each.key, each.usage) for each in found] == [
            (1, f"{one.id}/0", *one.sums[0]),
            (2, f"{one.id}/1", *one.sums[1]),
            (3, f"{two.id}/0", *two.sums[0]),
        ]
        assert await stores[0].newest_record() == 3
        assert [each.number for each in await stores[0].recorded(1, limit=1)] == [2]
        assert await stores[0].recorded(3, limit=9) == []


@pytest.mark.parametrize("name", ["sqlite", "redis"])
async def test_the_newest_records_are_kept_and_numbers_go_on(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    where = address(name, request, tmp_path)
    async with handles(lambda: open_usage_store(*where, keep_records=100), 1) as (store,), running(store):
        for _ in range(5):
            await store.add(batch(*(used(model=f"m{number}") for number in range(100))))
        kept = [each.number for each in await store.recorded(0, limit=1000)]
        # Redis removes whole nodes of its stream, of a hundred entries each.
        assert kept == list(range(kept[0], 501))
        assert 100 <= len(kept) <= 200
        assert await store.newest_record() == 500


async def test_a_restore_leaves_the_records_as_they_are(opening: Opening[UsageStore]) -> None:
    async with handles(opening, 1) as (store,), running(store):
        await store.add(batch(used()))
        await store.restore([])
        await store.add(batch(used()))
        assert [each.number for each in await store.recorded(0, limit=9)] == [1, 2]
