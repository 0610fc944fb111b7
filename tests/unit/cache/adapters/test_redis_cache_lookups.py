"""When lookups are sent and when they are shed: in virtual time, with a fake Redis of adjustable latency.

The behaviour of a real Redis is tested in tests/contract.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from pydantic import SecretStr

from control_plane.cache.adapters.redis_cache_connection import CacheConnection
from control_plane.cache.adapters.redis_cache_lookups import CacheLookups
from control_plane.cache.domain.shared_value import frame, name_of
from control_plane.telemetry.shared_cache_counts import SharedCacheCounts
from tests.aio import hold_up, settle

pytestmark = pytest.mark.virtual_time

KEY, OTHER = b"k" * 32, b"o" * 32
FOUND = [b"value"]


def now_s() -> float:
    return asyncio.get_running_loop().time()


class SlowRedis(CacheConnection):
    """Fake Redis connection: each answer takes `takes_s`, and blocks this process's event loop for
    `held_up_s` before.
    """

    def __init__(self) -> None:
        super().__init__(SecretStr("redis://h"))
        self.takes_s, self.held_up_s = 0.001, 0.0
        self.held = {name_of(KEY): frame(KEY, *FOUND)}
        self.asked: list[list[bytes]] = []
        self.connections = 0

    async def open(self) -> None:
        self.connections += 1

    def drop(self) -> None:
        pass

    async def get_many(self, names: Sequence[bytes]) -> list[bytes | None]:
        self.asked.append(list(names))
        hold_up(self.held_up_s)
        await asyncio.sleep(self.takes_s)
        return [self.held.get(name) for name in names]


class Bench:
    def __init__(self) -> None:
        self.redis = SlowRedis()
        self.counts = SharedCacheCounts()
        self.lookups = CacheLookups(self.redis, self.counts, on_first_connection=self._no_look, now_s=now_s)

    async def _no_look(self, connection: CacheConnection) -> None:
        pass

    async def find(self, key: bytes = KEY, *, computing_s: float) -> list[bytes | None]:
        return await self.lookups.get([key], computing_s=computing_s)

    async def ask_until(self, condition: Callable[[], bool], *, computing_s: float, key: bytes = KEY, within_s: float) -> None:
        """Look up again and again, as callers do that compute after each miss, until the condition holds."""
        async with asyncio.timeout(within_s):
            while not condition():
                await self.find(key, computing_s=computing_s)
                await asyncio.sleep(computing_s)


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    each = Bench()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(each.lookups.run())
        await asyncio.sleep(0.1)
        assert not each.lookups.is_bypassed
        yield each
        task.cancel()


async def test_on_a_slow_host_it_is_asked_while_computing_is_slower_still() -> None:
    """On a slow host answers take 8 ms and computing 13 ms; on a quick host these are 0.3 ms and 3 ms."""
    async with bench() as slow:
        slow.redis.takes_s = 0.008
        await slow.ask_until(lambda: slow.counts.hits >= 100, computing_s=0.013, within_s=3.0)
        assert (slow.counts.late, slow.counts.slow) == (1, 0), "the first has learned what it takes"
        assert slow.lookups.answer_s == pytest.approx(0.008)


async def test_what_is_slower_than_computing_is_passed_over_at_once_and_asked_again_when_it_is_quick() -> None:
    async with bench() as slow:
        slow.redis.takes_s = 0.05
        await slow.ask_until(lambda: slow.counts.slow > 0, computing_s=0.01, within_s=1.0)
        late, began_s = slow.counts.late, now_s()
        for _ in range(50):
            assert await slow.find(computing_s=0.01) == [None]
        assert now_s() == began_s, "nobody waits"
        assert await slow.find(computing_s=0.5) == FOUND, "but for whom computing takes longer"
        slow.redis.takes_s = 0.001
        await slow.ask_until(lambda: slow.counts.hits > 10, computing_s=0.01, within_s=3.0)
        assert slow.counts.late == late
        assert not slow.lookups.is_bypassed


async def test_where_nothing_is_found_it_is_not_asked_for_much_until_trials_find_something() -> None:
    async with bench() as slow:
        slow.redis.takes_s = 0.008
        await slow.ask_until(lambda: slow.counts.slow > 0, key=OTHER, computing_s=0.013, within_s=3.0)
        hits, misses = slow.counts.hits, slow.counts.misses
        await slow.ask_until(lambda: slow.counts.slow > 300, key=OTHER, computing_s=0.013, within_s=10.0)
        assert (slow.counts.hits, slow.counts.misses) == (hits, misses), "trials are made for nobody"
        assert slow.redis.asked[-1] == [name_of(OTHER)], "and with what was wanted"
        slow.redis.held[name_of(OTHER)] = frame(OTHER, b"there now")
        await slow.ask_until(lambda: slow.counts.hits > 10, key=OTHER, computing_s=0.013, within_s=20.0)


async def test_nobody_begins_to_wait_behind_one_that_does_not_come() -> None:
    async with bench() as slow, asyncio.TaskGroup() as tasks:
        slow.redis.takes_s = 0.2
        first = tasks.create_task(slow.find(computing_s=0.01))
        await asyncio.sleep(0.0021)
        began_s = now_s()
        assert await slow.find(computing_s=0.01) == [None]
        assert now_s() == began_s
        assert await first == [None]
        assert (slow.counts.late, slow.counts.slow) == (1, 1)


async def test_one_that_hangs_is_cut_off_and_comes_back() -> None:
    async with bench() as slow:
        slow.redis.takes_s = 1e9
        await slow.find(computing_s=0.01)
        await asyncio.sleep(2.0)
        assert slow.lookups.is_bypassed
        assert slow.lookups.answer_s == 0.0
        assert await slow.find(computing_s=1e6) == [None]
        assert slow.counts.away == 1
        await asyncio.sleep(3600.0)
        slow.redis.takes_s = 0.008
        await slow.ask_until(lambda: slow.counts.hits > 10, computing_s=0.013, within_s=10.0)


async def test_pauses_of_this_process_are_not_the_servers_fault() -> None:
    async with bench() as slow:
        slow.redis.held_up_s = 60.0
        for _ in range(20):
            await asyncio.sleep(0.2)
            await slow.find(computing_s=0.01)
        assert slow.redis.connections == 1
        assert not slow.lookups.is_bypassed
        slow.redis.held_up_s = 0.0
        await slow.ask_until(lambda: slow.counts.hits > 10, computing_s=0.01, within_s=5.0)


async def test_an_answer_that_lies_there_when_this_process_wakes_up_is_taken() -> None:
    async with bench() as slow, asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(slow.find(computing_s=0.02))
        await settle()
        hold_up(1.0)
        assert await asking == FOUND


async def test_why_it_is_passed_over_is_told_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        async with bench() as slow:
            slow.redis.takes_s = 0.05
            await slow.ask_until(lambda: slow.counts.slow > 0, computing_s=0.01, within_s=1.0)
            started_s = now_s()
            await slow.ask_until(lambda: now_s() > started_s + 9.0, computing_s=0.01, within_s=10.0)
            assert caplog.messages == []
            await slow.ask_until(lambda: now_s() > started_s + 60.0, computing_s=0.01, within_s=61.0)
            slow.redis.takes_s = 0.001
            await slow.ask_until(lambda: slow.counts.hits > 10, computing_s=0.01, within_s=3.0)
    why, end = caplog.messages
    assert why.startswith("the shared cache at redis://h:6379/0 is not asked, since computing costs less: its answers take 50.0 ms")
    assert why.endswith("loop is 0.0 ms late), computing takes 10.0 ms, and 100 % of what is looked up is there")
    assert end == "the shared cache at redis://h:6379/0 is asked again"
