"""What every `admission/ports.TokenBuckets` does: those of a parent for its workers, and Redis."""

from __future__ import annotations

import asyncio

import pytest

from control_plane.admission.adapters.redis_buckets import RedisTokenBuckets
from control_plane.admission.domain.rate_limit import RateLimit
from control_plane.admission.ports import TokenBuckets
from control_plane.core.errors import StoreUnavailable
from control_plane.workers.token_buckets import TokenBuckets as ParentsOwn
from tests.contract.stores.stores import Opening, empty_redis, handles, link

SLOW = RateLimit(0.001, 4.0)
"""Nothing comes back while a test runs, however slow the machine."""


@pytest.fixture(params=["parent", "redis"])
def opening(request: pytest.FixtureRequest) -> Opening[TokenBuckets]:
    if request.param == "parent":
        parent = ParentsOwn()

        async def open_parents() -> TokenBuckets:
            return parent

        return open_parents
    server = empty_redis(request)

    async def open_redis() -> TokenBuckets:
        return RedisTokenBuckets(link(server))

    return open_redis


async def test_all_draw_from_the_same_until_it_is_empty(opening: Opening[TokenBuckets]) -> None:
    async with handles(opening, 2) as (one, other):
        first = await one.draw("t", SLOW, want=3, spent=0)
        second = await other.draw("t", SLOW, want=3, spent=0)
        third = await one.draw("t", SLOW, want=1, spent=0)
        assert [found.granted for found in (first, second, third)] == [3, 1, 0]
        assert [found.debt_s for found in (first, second, third)] == [pytest.approx(1000 * taken, abs=20) for taken in (3, 4, 4)]
        assert (await one.draw("other", SLOW, want=9, spent=0)).granted == 4


async def test_what_was_spent_is_owed_and_what_is_given_back_is_there(opening: Opening[TokenBuckets]) -> None:
    async with handles(opening, 2) as (one, other):
        assert (await one.draw("t", SLOW, want=1, spent=2)).granted == 1
        assert (await other.draw("t", SLOW, want=9, spent=3)).granted == 0
        found = await one.draw("t", SLOW, want=0, spent=-4)
        assert (found.granted, found.debt_s) == (0, pytest.approx(2000, abs=20))
        assert (await other.draw("t", SLOW, want=9, spent=0)).granted == 2
        assert (await one.draw("t", SLOW, want=0, spent=-50)).debt_s == 0.0
        assert (await one.draw("t", SLOW, want=0, spent=1000)).debt_s == pytest.approx(8000, abs=20), "two bursts at most"


async def test_it_fills_again(opening: Opening[TokenBuckets]) -> None:
    async with handles(opening, 1) as (one,):
        limit = RateLimit(20.0, 3.0)
        assert (await one.draw("t", limit, want=3, spent=0)).granted == 3
        granted = 0
        while granted < 5:
            await asyncio.sleep(0.02)
            granted += (await one.draw("t", limit, want=9, spent=0)).granted


async def test_names_may_be_any_text_and_many_may_draw_at_once(opening: Opening[TokenBuckets]) -> None:
    async with handles(opening, 3) as buckets:
        for name in ("", "t\u00e4nant \U0001f30a", "a:b {c}", "x" * 1000):
            draws = [each.draw(name, RateLimit(0.001, 10.0), want=1, spent=0) for each in buckets for _ in range(10)]
            assert sum([found.granted for found in await asyncio.gather(*draws)]) == 10


async def test_a_redis_that_is_away_or_holds_something_else_is_unavailable_or_full(request: pytest.FixtureRequest) -> None:
    server = empty_redis(request)

    async def _redis(server: object) -> TokenBuckets:
        return RedisTokenBuckets(link(server))  # type: ignore[arg-type]

    async with handles(lambda: _redis(server), 1) as (one,):
        server.call("SET", "tidegate:rate:t", "garbage")
        assert (await one.draw("t", SLOW, want=9, spent=0)).granted == 4
        server.call("DEL", "tidegate:rate:t")
        server.call("HSET", "tidegate:rate:t", "a", "b")
        with pytest.raises(StoreUnavailable):
            await one.draw("t", SLOW, want=9, spent=0)


async def test_a_redis_forgets_a_bucket_that_is_full(request: pytest.FixtureRequest) -> None:
    server = empty_redis(request)

    one = RedisTokenBuckets(link(server))
    full_after_s = 4000
    await one.draw("t", SLOW, want=4, spent=0)
    assert 0 < int(server.call("PTTL", "tidegate:rate:t")[1:-2]) <= 1000 * (full_after_s + 1)
    await one.draw("t", SLOW, want=0, spent=-4)
    assert server.call("EXISTS", "tidegate:rate:t") == b":0\r\n"
    await one.close()
