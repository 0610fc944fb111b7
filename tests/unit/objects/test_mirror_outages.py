"""What is in force while the state store is away, and after it has lost what was read from it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from control_plane.objects.domain.purge import Purge
from control_plane.objects.domain.stored import Kind, Stored
from control_plane.objects.domain.stored_objects import KIND_OF, name_of, to_body
from control_plane.objects.domain.tenant import Tenant
from control_plane.objects.mirror import ObjectMirror
from tests.fakes.stores.state_store import FakeState, FakeStateStore
from tests.unit.objects.mirror_bench import ALL, KEY, Bench

pytestmark = pytest.mark.virtual_time


class SilentStore(FakeStateStore):
    """Store that can be made to hang: it neither answers nor fails."""

    async def changes(self, since: int, *, timeout_s: float) -> list[Stored]:
        if since:
            await asyncio.sleep(1e5)
        return await super().changes(since, timeout_s=timeout_s)


async def test_while_the_store_is_away_the_last_known_state_stays(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        bench = Bench()
        await bench.put(*ALL)
        async with bench.running():
            await asyncio.sleep(10.0)
            bench.store.go_away()
            await asyncio.sleep(100.0)
            assert bench.known.keys == {KEY.id: KEY}
            assert not bench.known.is_current
            assert 99.0 <= bench.known.behind_s <= 101.0
            bench.store.is_away = False
            await bench.store.delete(Kind.API_KEY, KEY.id)
            await asyncio.sleep(1.1)
            assert bench.known.keys == {}
            assert bench.known.is_current
    assert caplog.text.count("the last known state stays in force") == 1, "an outage is told of once"
    assert caplog.text.count("the state store is back") == 1


async def test_outages_come_and_go() -> None:
    bench = Bench()
    async with bench.running() as task:
        for round_ in range(5):
            bench.store.go_away()
            await asyncio.sleep(7.3)
            bench.store.is_away = False
            await bench.put(Tenant(f"t{round_}"))
            await asyncio.sleep(1.1)
            assert set(bench.known.tenants) == {f"t{number}" for number in range(round_ + 1)}
        assert not task.done()


class TestStoresThatHaveLostChanges:
    """A store that is suddenly empty or older is not believed: it would lock everybody out, or bring revoked keys back."""

    @asynccontextmanager
    async def emptied(self, *, is_away: bool = False) -> AsyncIterator[Bench]:
        bench = Bench()
        await bench.put(*ALL, Tenant("other"), Tenant("gone"))
        await bench.store.delete(Kind.TENANT, "gone")
        async with bench.running():
            if is_away:
                bench.store.go_away()
                await asyncio.sleep(1.0)
            bench.store.state, bench.store.is_away = FakeState(), False
            await asyncio.sleep(2.1)
            yield bench

    @pytest.mark.parametrize("is_away", [False, True], ids=["emptied", "another one after an outage"])
    async def test_what_was_known_stays_in_force(self, is_away: bool, caplog: pytest.LogCaptureFixture) -> None:
        async with self.emptied(is_away=is_away) as bench:
            assert bench.known.keys == {KEY.id: KEY}
            assert set(bench.known.tenants) == {"acme", "other"}
            assert not bench.known.is_current
            assert bench.known.behind_s > 1.0
            assert bench.known.regression.startswith("the state store has come back empty: the last known state stays in force")
            await asyncio.sleep(100.0)
            assert bench.known.keys == {KEY.id: KEY}
        assert caplog.text.count("has come back empty") == 1

    async def test_an_older_one_brings_no_revoked_key_back(self) -> None:
        bench = Bench()
        await bench.put(*ALL)
        older = FakeState(dict(bench.store.state.objects), bench.store.state.last)
        await bench.store.delete(Kind.API_KEY, KEY.id)
        async with bench.running():
            bench.store.go_away()
            await asyncio.sleep(1.0)
            bench.store.state, bench.store.is_away = older, False
            await asyncio.sleep(2.1)
            assert bench.known.keys == {}
            assert "change 4 as its last, though 5 was read before" in bench.known.regression

    async def test_one_that_has_lost_nothing_that_is_in_force_is_believed(self) -> None:
        bench = Bench()
        await bench.put(*ALL)
        older = FakeState(dict(bench.store.state.objects), bench.store.state.last)
        await bench.put(Purge("a", "0" * 32))
        async with bench.running():
            bench.store.state = older
            await asyncio.sleep(2.1)
            assert (bench.known.is_current, bench.known.regression) == (True, "")
            await bench.put(Tenant("new"))
            await asyncio.sleep(0.01)
            assert set(bench.known.tenants) == {"acme", "new"}

    async def test_many_objects_are_compared_without_holding_others_up(self) -> None:
        bench, turns = Bench(), 0
        await bench.put(*(Tenant(f"t{number}") for number in range(1000)))
        older = FakeState(dict(bench.store.state.objects), bench.store.state.last)
        await bench.put(Purge("a", "0" * 32))
        await bench.known.start()
        bench.store.state = older
        async with asyncio.TaskGroup() as tasks:
            again = tasks.create_task(bench.known.start())
            while not again.done():
                turns += 1
                await asyncio.sleep(0)
        assert turns >= 10
        assert bench.known.regression == ""

    async def test_what_is_changed_from_then_on_counts(self) -> None:
        async with self.emptied() as bench:
            await bench.put(Tenant("acme", concurrency=3), Tenant("new"))
            await asyncio.sleep(0.01)
            assert set(bench.known.tenants) == {"acme", "other", "new"}
            assert bench.known.tenants["acme"].concurrency == 3
            await bench.put(KEY)
            await bench.store.delete(Kind.API_KEY, KEY.id)
            await asyncio.sleep(0.01)
            assert bench.known.keys == {}
            assert not bench.known.is_current

    async def test_an_outage_in_between_changes_nothing(self) -> None:
        async with self.emptied() as bench:
            bench.store.go_away()
            await asyncio.sleep(3.0)
            bench.store.is_away = False
            await bench.put(Tenant("new"))
            await asyncio.sleep(1.1)
            assert set(bench.known.tenants) == {"acme", "other", "new"}
            assert bench.known.regression

    async def test_a_backup_that_is_restored_ends_it(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        async with self.emptied() as bench:
            everything = [*ALL, Tenant("other")]
            await bench.store.restore([Stored(KIND_OF[type(each)], name_of(each), 1, to_body(each)) for each in everything])
            await asyncio.sleep(0.01)
            assert (bench.known.is_current, bench.known.regression) == (True, "")
            assert bench.known.keys == {KEY.id: KEY}
        assert "holds again what is in force" in caplog.text

    async def test_a_restart_believes_the_store(self) -> None:
        async with self.emptied() as bench:
            after = ObjectMirror(bench.store, now_s=asyncio.get_running_loop().time)
            await after.start()
            assert (after.keys, after.is_current) == ({}, True)


async def test_a_store_that_says_nothing_is_away_after_five_seconds() -> None:
    bench = Bench(SilentStore())
    await bench.put(Tenant("acme"))
    async with bench.running():
        await asyncio.sleep(4.9)
        assert bench.known.is_current
        await asyncio.sleep(0.2)
        assert not bench.known.is_current
        assert bench.known.behind_s == pytest.approx(5.1)
