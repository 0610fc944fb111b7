from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from control_plane.core.errors import ModelNotFound, StoreUnavailable
from control_plane.models.domain.model_source import ModelSource, SourceFile
from control_plane.models.tiers.stoppable_threads import StoppableThreads
from control_plane.models.tiers.store_catalogue import StoreCatalogue
from tests.fakes.triton.model_store import FakeModelStore


@asynccontextmanager
async def known(*stores: FakeModelStore) -> AsyncIterator[StoreCatalogue]:
    threads = StoppableThreads(2, name="t")
    yield StoreCatalogue(stores, threads, lambda: ())
    threads.close()


def sized(**sizes: int) -> FakeModelStore:
    return FakeModelStore({name: {"x": bytes(size)} for name, size in sizes.items()})


async def test_what_a_store_had_counts_while_it_is_away() -> None:
    store = sized(a=1)
    async with known(store) as sources:
        await sources.refresh([])
        store.is_away = True
        await sources.refresh([])
        assert list(sources.names()) == ["a"]
        with pytest.raises(StoreUnavailable):
            await sources.store_of("later")


async def test_a_store_that_hangs_hides_no_other() -> None:
    slow, quick = sized(a=1), sized(b=1)
    slow.url, slow.may_list = "fake://slow", threading.Event()
    async with known(slow, quick) as sources:
        refreshing = asyncio.get_running_loop().create_task(sources.refresh([]))
        while not sources.names():
            await asyncio.sleep(0.005)
        assert list(sources.names()) == ["b"]
        slow.may_list.set()
        await refreshing
        assert sorted(sources.names()) == ["a", "b"]


async def test_what_is_gone_from_its_store_is_known_no_longer() -> None:
    store = sized(a=1, b=1)
    async with known(store) as sources:
        await sources.refresh([])
        del store.models["a"]
        await sources.refresh(["a"])
        assert (list(sources.names()), sources.version_of("a")) == (["b"], None)
        with pytest.raises(ModelNotFound, match="no model 'a' in fake://cold"):
            await sources.store_of("a")


async def test_what_is_held_is_looked_at_each_time_and_of_the_others_so_many() -> None:
    store = sized(**{f"m{number:03}": 1 for number in range(120)})
    async with known(store) as sources:
        await sources.refresh(["m110"])
        assert sources.version_of("m110") is not None
        assert sum(sources.version_of(name) is not None for name in sources.names()) == 51
        for _ in range(2):
            await sources.refresh([])
        assert all(sources.version_of(name) for name in sources.names())


async def test_expected_is_bytes_over_the_stores_rate_less_what_is_there() -> None:
    store = sized(small=10, big=10_000_000)
    async with known(store) as sources:
        await sources.refresh([])
        sources.measured(store, 10_000_000, 1.0)
        assert sources.expected_s("big", done_bytes=0) == pytest.approx(1.3)
        assert sources.expected_s("big", done_bytes=5_000_000) == pytest.approx(0.8)
        assert sources.expected_s("small", done_bytes=0) == pytest.approx(0.3, abs=0.01)
        assert sources.expected_s("unseen", done_bytes=0) > 0.3  # as the others are


async def test_the_rate_follows_and_small_fetches_tell_nothing_of_it() -> None:
    store = sized(m=100_000_000)
    async with known(store) as sources:
        await sources.refresh([])
        sources.measured(store, 10_000_000, 1.0)
        first_s = sources.expected_s("m", done_bytes=0)
        sources.measured(store, 1000, 1.0)
        assert sources.expected_s("m", done_bytes=0) == first_s
        for _ in range(20):
            sources.measured(store, 20_000_000, 1.0)
        assert sources.expected_s("m", done_bytes=0) == pytest.approx(5.3, rel=0.01)


async def test_it_looks_again_by_itself_until_it_is_cancelled() -> None:
    store = sized(a=1)
    async with known(store) as sources:
        keeping = asyncio.get_running_loop().create_task(sources.keep_fresh(list, every_s=0.01))
        while store.listings < 3:
            await asyncio.sleep(0.005)
        keeping.cancel()
        await asyncio.wait([keeping])


class Sized(ModelSource):
    """A listing that counts how often the size of any is asked for."""

    asked = 0

    @property
    def bytes(self) -> int:
        Sized.asked += 1
        return 1_000_000


async def test_what_thousands_that_were_not_seen_take_is_not_worked_out_for_each() -> None:
    async with known() as sources:
        for number in range(100):
            sources.note(Sized(f"m{number}", ()))
        times = {sources.expected_s(f"unseen{number}", done_bytes=0) for number in range(1000)}
        assert len(times) == 1
        assert Sized.asked == 100
        sources.note(ModelSource("huge", (SourceFile("x", 10**12, ""),)))
        assert sources.expected_s("unseen", done_bytes=0) > times.pop(), "it follows what is seen"
