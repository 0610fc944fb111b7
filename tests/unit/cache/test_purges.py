from __future__ import annotations

import asyncio

import pytest

from control_plane.cache.purges import Purges
from control_plane.core.errors import InvalidRequest, StoreUnavailable
from control_plane.objects.domain.route import Route
from control_plane.objects.domain.stored import Kind
from control_plane.objects.mirror import ObjectMirror
from control_plane.objects.objects import Objects
from tests.fakes.stores.state_store import FakeStateStore

pytestmark = pytest.mark.virtual_time


class Bench:
    def __init__(self) -> None:
        self.store = FakeStateStore()
        self.known = ObjectMirror(self.store, now_s=asyncio.get_running_loop().time)
        self.purges = Purges(Objects(self.store), self.known)


async def test_it_holds_here_before_the_answer_and_for_all_who_share_the_store() -> None:
    bench = Bench()
    other = ObjectMirror(bench.store)
    await bench.known.start()
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(bench.known.run())
        for purge in (lambda: bench.purges.purge("a"), bench.purges.purge, lambda: bench.purges.purge("a")):
            before = bench.known.purge_generation_of("a")
            await purge()
            assert bench.known.purge_generation_of("a") != before
        assert asyncio.get_running_loop().time() < 0.1
        following.cancel()
    await other.start()
    assert other.purges == bench.known.purges
    assert set(other.purges) == {"a", "*"}


async def test_behind_a_routes_name_is_its_model_and_with_it_go_the_ensembles_that_use_it() -> None:
    bench = Bench()
    await Objects(bench.store).put(Route("search", "a"))
    await bench.known.start()
    purges = Purges(Objects(bench.store), bench.known, dependents={"a": ["whole", "a"]}.__getitem__, wait_s=0.0)
    await purges.purge("search")
    assert {name for kind, name in bench.store.state.objects if kind is Kind.PURGE} == {"a", "whole"}


async def test_a_mirror_that_does_not_follow_is_waited_for_no_longer_than_a_second() -> None:
    bench = Bench()
    await bench.purges.purge("a")
    assert asyncio.get_running_loop().time() == pytest.approx(1.0, abs=0.1)
    assert await bench.store.get(Kind.PURGE, "a") is not None


async def test_what_is_no_model_and_a_store_that_is_away_are_told_of() -> None:
    bench = Bench()
    with pytest.raises(InvalidRequest, match="model must be"):
        await bench.purges.purge("a/b")
    bench.store.is_away = True
    with pytest.raises(StoreUnavailable):
        await bench.purges.purge()
    assert bench.store.state.objects == {}
