from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest

from control_plane.core.errors import StoreUnavailable
from control_plane.objects.domain.price import Price
from control_plane.objects.domain.purge import EVERY_MODEL, Purge
from control_plane.objects.domain.rollout import Phase, Rollout, Step
from control_plane.objects.domain.route import Route, Target
from control_plane.objects.domain.stored import Kind
from control_plane.objects.domain.stored_objects import to_body
from control_plane.objects.domain.tenant import Tenant
from control_plane.objects.mirror import ObjectMirror
from tests.fakes.stores.state_store import FakeStateStore
from tests.unit.objects.mirror_bench import ALL, KEY, Bench

pytestmark = pytest.mark.virtual_time


async def test_start_reads_everything() -> None:
    bench = Bench()
    assert (bench.known.is_current, bench.known.behind_s) == (False, float("inf"))
    await bench.put(*ALL)
    await bench.known.start()
    known = bench.known
    assert known.keys == {KEY.id: KEY}
    assert known.tenants == {"acme": Tenant("acme")}
    assert known.routes == {"fast": Route("fast", "text_encoder")}
    assert known.prices == {"spring": Price("spring", 0.0, 0.1, "EUR")}
    assert known.resource_version == 4
    assert (known.is_current, known.behind_s) == (True, 0.0)


async def test_a_tenants_weight_is_its_own_and_one_where_nothing_is_said() -> None:
    bench = Bench()
    await bench.put(Tenant("acme", weight=3.0))
    await bench.known.start()
    assert (bench.known.weight_of("acme"), bench.known.weight_of("unknown")) == (3.0, 1.0)


async def test_a_tenants_secret_is_in_its_first_key_and_else_in_the_first_of_all() -> None:
    bench = Bench()
    assert bench.known.secret_of("acme") == ""
    for number, (tenant, created_s) in enumerate([("b", 3.0), ("a", 5.0), ("a", 4.0), ("b", 3.0)]):
        await bench.put(replace(KEY, id=f"{number:012x}", tenant=tenant, secret_sha256=f"{number:064x}", created_s=created_s))
    await bench.known.start()
    assert [int(bench.known.secret_of(tenant)) for tenant in ("a", "b", "has tokens alone")] == [2, 0, 0]


async def test_only_a_change_of_a_key_replaces_the_keys_and_what_is_made_of_them() -> None:
    bench = Bench()
    await bench.put(*ALL)
    async with bench.running():
        before = bench.known.keys
        await bench.put(Tenant("another"))
        await asyncio.sleep(1.0)
        assert "another" in bench.known.tenants
        assert bench.known.keys is before
        await bench.put(replace(KEY, id="0" * 12, secret_sha256="cd" * 32, created_s=0.5))
        await asyncio.sleep(1.0)
        assert bench.known.keys is not before
        assert bench.known.secret_of("acme") == "cd" * 32


async def test_start_on_an_empty_store_does_not_wait() -> None:
    bench = Bench()
    await bench.known.start()
    assert asyncio.get_running_loop().time() == 0.0
    assert (bench.known.resource_version, bench.known.is_current) == (0, True)


async def test_start_says_that_the_store_is_away() -> None:
    bench = Bench()
    bench.store.is_away = True
    with pytest.raises(StoreUnavailable, match="away"):
        await bench.known.start()
    assert not bench.known.is_current


async def test_follows_what_is_written_changed_and_deleted() -> None:
    bench = Bench()
    async with bench.running():
        await bench.put(*ALL)
        await asyncio.sleep(0.01)
        assert bench.known.tenants == {"acme": Tenant("acme")}
        await bench.put(Tenant("acme", concurrency=3), Tenant("other"))
        await asyncio.sleep(0.01)
        assert bench.known.tenants == {"acme": Tenant("acme", concurrency=3), "other": Tenant("other")}
        await bench.store.delete(Kind.TENANT, "acme")
        await asyncio.sleep(0.01)
        assert bench.known.tenants == {"other": Tenant("other")}
        assert bench.known.keys == {KEY.id: KEY}
        assert bench.known.resource_version == 7


async def test_each_change_is_a_generation_and_silence_is_none() -> None:
    bench = Bench()
    async with bench.running():
        generation, tenants = bench.known.generation, bench.known.tenants
        await asyncio.sleep(3600.0)
        assert bench.known.generation == generation
        assert bench.known.is_current
        await bench.put(Tenant("acme"))
        await asyncio.sleep(0.01)
        assert bench.known.generation == generation + 1
        assert tenants == {}, "whoever holds a mapping keeps it as it was"


async def test_what_cannot_be_read_is_passed_over_and_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    await bench.put(Tenant("acme"))
    await bench.store.put(Kind.TENANT, "bad", {"name": "bad", "of_a_newer_version": 1})
    async with bench.running():
        for _ in range(3):  # each return reads everything anew
            bench.store.go_away()
            await asyncio.sleep(2.0)
            bench.store.is_away = False
            await asyncio.sleep(2.0)
        assert set(bench.known.tenants) == {"acme"}
        await bench.put(Tenant("bad"))
        await asyncio.sleep(0.01)
        assert set(bench.known.tenants) == {"acme", "bad"}
    assert caplog.text.count("cannot be read and is passed over") == 1
    assert "of_a_newer_version" in caplog.text


async def test_a_key_that_can_no_longer_be_read_is_not_accepted_any_more(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    await bench.put(*ALL)
    async with bench.running():
        await bench.store.put(Kind.API_KEY, KEY.id, {**to_body(KEY), "revoked_by": "a newer version"})
        await asyncio.sleep(0.01)
        assert bench.known.keys == {}
    assert KEY.secret_sha256 not in caplog.text


async def test_many_objects_are_read_without_holding_others_up_and_appear_at_once() -> None:
    bench = Bench()
    await bench.put(*(Tenant(f"t{number}") for number in range(1000)))
    seen = []
    async with asyncio.TaskGroup() as tasks:
        start = tasks.create_task(bench.known.start())
        while not start.done():
            seen.append(len(bench.known.tenants))
            await asyncio.sleep(0)
    assert len(seen) >= 10
    assert set(seen) <= {0, 1000}
    assert len(bench.known.tenants) == 1000


@pytest.mark.parametrize("moment", ["waiting for changes", "waiting for the store to be back"])
async def test_cancelling_it_leaves_what_is_known(moment: str) -> None:
    bench = Bench()
    await bench.put(*ALL)
    async with bench.running() as task:
        if moment == "waiting for the store to be back":
            bench.store.go_away()
        await asyncio.sleep(5.0)
    assert task.cancelled()
    assert bench.known.keys == {KEY.id: KEY}
    assert bench.store.state.waiting == set()


async def test_a_kind_that_only_a_newer_version_knows_is_passed_over() -> None:
    bench = Bench()
    await bench.store.put("rollout", "next", {"weights": [1]})  # type: ignore[arg-type]
    await bench.put(*ALL)
    await bench.known.start()
    assert bench.known.keys == {KEY.id: KEY}
    assert bench.known.resource_version == bench.store.state.last


class TestCacheGenerations:
    """The generation of a model's purges, which is part of its cache keys."""

    async def test_each_purge_makes_another_one_of_its_model_and_one_of_all_of_each(self) -> None:
        bench = Bench()
        async with bench.running():
            seen = [(bench.known.purge_generation_of("a"), bench.known.purge_generation_of("b"))]
            for number, model in enumerate(["a", "b", EVERY_MODEL, "a", EVERY_MODEL]):
                await bench.put(Purge(model, f"{number:032x}"))
                await asyncio.sleep(0.01)
                seen.append((bench.known.purge_generation_of("a"), bench.known.purge_generation_of("b")))
        assert seen[0] == (".", ".")
        of_a, of_b = [a for a, _ in seen], [b for _, b in seen]
        assert [before != after for before, after in pairwise(of_a)] == [True, False, True, True, True]
        assert [before != after for before, after in pairwise(of_b)] == [False, True, True, False, True]
        assert len(set(of_a)) == 5

    async def test_a_purge_that_cannot_be_read_is_one_all_the_same(self, caplog: pytest.LogCaptureFixture) -> None:
        bench = Bench()
        async with bench.running():
            seen = {bench.known.purge_generation_of("a")}
            for since_s in range(3):
                await bench.store.put(Kind.PURGE, "a", {"since_s": since_s})
                await asyncio.sleep(0.01)
                seen.add(bench.known.purge_generation_of("a"))
            assert len(seen) == 4
            assert bench.known.purge_generation_of("b") == "."
        assert "purge 'a': cannot be read" in caplog.text


@pytest.mark.parametrize(("resource_version", "is_known", "took_s"), [(1, True, 0.0), (3, True, 2.0), (4, False, 5.0)])
async def test_waiting_for_a_change(resource_version: int, is_known: bool, took_s: float) -> None:
    bench = Bench()
    await bench.put(Tenant("t"))
    async with bench.running(), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(bench.known.wait_for(resource_version, timeout_s=5.0))
        for name in "uv":
            await asyncio.sleep(1.0)
            await bench.put(Tenant(name))
        assert await waiting is is_known
        assert asyncio.get_running_loop().time() == pytest.approx(max(2.0, took_s), abs=0.1)


async def test_a_rollout_changes_its_route_and_one_that_is_given_up_does_not() -> None:
    store = FakeStateStore()
    mirror = ObjectMirror(store)
    route, steps = Route("r", "v1"), (Step(500, 1, 0.0),)
    rollout = Rollout("r", "0123456789abcdef" * 2, "v2", "v1", steps)
    store.state.write(Kind.ROUTE, "r", to_body(route))
    store.state.write(Kind.ROLLOUT, "r", to_body(rollout))
    await mirror.start()
    assert mirror.routes["r"] == replace(route, targets=(Target("v2", 500),), salt=rollout.id)
    assert mirror.stored_routes["r"] == route
    assert mirror.rollout_ids == {"r": rollout.id}
    generation = mirror.generation
    mirror.give_up(rollout.id)
    assert mirror.generation > generation, "answers that were found by the old weights are not found any more"
    store.state.write(Kind.ROUTE, "other", to_body(Route("other", "m")))
    await mirror.start()
    assert (mirror.routes["r"], mirror.rollout_ids) == (route, {})
    store.state.write(Kind.ROLLOUT, "r", to_body(replace(rollout, id="f" * 32, phase=Phase.PROMOTING)))
    await mirror.start()
    assert mirror.routes["r"] == replace(route, model="v2", targets=(Target("v1", 0),), salt="f" * 32)
    store.state.write(Kind.ROUTE, "r", to_body(Route("r", "v3")))
    await mirror.start()
    assert mirror.routes["r"] == Route("r", "v3"), "somebody has changed the route meanwhile"
    store.state.write(Kind.ROLLOUT, "r", None)
    await mirror.start()
    assert mirror.rollouts == {}
