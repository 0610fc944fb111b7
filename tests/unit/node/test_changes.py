"""Loads and unloads through a node: fenced by the newest token, whole or undone, and known to all."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from control_plane.core.errors import ModelLoadFailed, UpstreamFailed, UpstreamUnavailable
from control_plane.core.held_memory import HeldMemory
from control_plane.core.model import ModelState
from control_plane.models.domain.description import DescribedModel, ModelSpec
from control_plane.node.connection import NodeConnection
from control_plane.node.domain.messages import Index, encode
from tests.aio import settle
from tests.unit.node.bench import Bench, NodeFilesOf

pytestmark = pytest.mark.virtual_time


async def test_a_leader_whose_time_is_over_changes_nothing_once_its_successor_has_looked() -> None:
    async with Bench().running() as bench:
        old, new = await bench.gateway(token=1).connected(), await bench.gateway(token=2).connected()
        async with old.instance.prepared("a") as prepared:
            assert await new.node.index(new.term()) == []
            with pytest.raises(UpstreamUnavailable, match="token 2"):
                await prepared.load()
        with pytest.raises(UpstreamUnavailable, match="token 2"):
            await old.instance.unload_now("a")
        with pytest.raises(UpstreamUnavailable, match="token 2"):
            await old.node.index(old.term())
        assert bench.control.loads == bench.control.unloads == []
        await new.load("a")


async def test_a_load_that_triton_was_asked_for_is_in_every_look_from_then_on() -> None:
    async with Bench().running() as bench:
        old, new = await bench.gateway(token=1).connected(), await bench.gateway(token=2).connected()
        bench.control.calls.hold()
        loading = asyncio.get_running_loop().create_task(old.load("a"))
        await settle()
        assert bench.control.states == {}
        (line,) = await new.node.index(new.term())
        assert (line.name, line.state) == ("a", ModelState.LOADING)
        bench.control.calls.may_answer.set()
        await loading
        (line,) = await new.node.index(None)
        assert (line.name, line.state) == ("a", ModelState.READY)


async def test_another_fleet_is_refused_until_the_first_has_left_and_that_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with Bench().running() as bench:
        own, other = await bench.gateway(fleet="own").connected(), await bench.gateway(fleet="other", token=9).connected()
        await own.load("a")
        for _ in range(2):  # it asks twice a second
            with pytest.raises(UpstreamUnavailable, match="'own' uses this node"):
                await other.load("b")
        (line,) = (record.getMessage() for record in caplog.records if "may not load or unload here" in record.getMessage())
        assert "'own' uses this node" in line
        own.run.cancel()
        await asyncio.wait([own.run])
        await settle()
        await other.load("b")


async def test_every_gateway_is_told_at_once_what_is_loaded() -> None:
    async with Bench().running() as bench:
        one, other = await bench.gateway().connected(), await bench.gateway().connected()
        began_s = bench.now_s()
        await one.load("a")
        await settle()
        assert other.indexes[-1] == ["a READY"]
        await one.instance.unload_now("a")
        await settle()
        assert other.indexes[-1] == ["a UNAVAILABLE"]
        assert bench.now_s() - began_s < 0.1


async def test_an_index_that_a_gateway_has_is_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    heard, keep = list[Index](), NodeConnection.note_index
    monkeypatch.setattr(NodeConnection, "note_index", lambda connection, index: (heard.append(index), keep(connection, index)))
    async with Bench().running() as bench:
        gateway = await bench.gateway().connected()
        await gateway.load("a")
        await settle()
        first = await gateway.node.index(None)
        assert [line.name for line in first] == ["a"]
        assert await gateway.node.index(None) is first
        assert [index.lines is None for index in heard] == [False, True, True]
        gateway.wires[-1].to_node.put_nowait(None)
        await gateway.node.wait_until(lambda: not gateway.node.is_connected)
        await gateway.connected()
        assert await gateway.node.index(None) == first, "of another connection nothing is known"


@pytest.mark.parametrize(
    "index", [Index(3, 99, None), Index(0, 0, None)], ids=["of an edition that was not told", "a change without lines"]
)
async def test_a_node_that_refers_to_an_index_that_it_never_told_is_cut_off(index: Index) -> None:
    async with Bench().running() as bench:
        gateway = await bench.gateway().connected()
        gateway.wires[-1].to_gateway.put_nowait(encode(index))
        await gateway.node.wait_until(lambda: not gateway.node.is_connected)
        assert "does not keep to the protocol" in gateway.node.why_away
        assert gateway.indexes == []
        await gateway.connected()


async def test_a_failed_load_says_why_as_triton_did() -> None:
    async with Bench().running() as bench:
        gateway = await bench.gateway().connected()
        bench.control.failures["a"] = ModelLoadFailed("no weights", upstream_code=3, is_transient=True)
        with pytest.raises(ModelLoadFailed, match="no weights") as caught:
            await gateway.load("a")
        assert (caught.value.upstream_code, caught.value.is_transient) == (3, True)
        del bench.control.failures["a"]
        await gateway.load("a")


@pytest.mark.parametrize("end", ["left", "broken", "frozen"])
async def test_a_load_that_is_only_prepared_is_given_up_with_its_gateway(end: str) -> None:
    async with Bench().running() as bench:
        gateway, other = await bench.gateway().connected(), await bench.gateway().connected()
        with suppress(UpstreamUnavailable):
            async with gateway.instance.prepared("a") as prepared:
                if end == "broken":
                    gateway.wires[-1].to_node.put_nowait(None)
                if end == "frozen":
                    gateway.freeze()
                if end != "left":
                    await asyncio.sleep(6.0)
                    await prepared.load()
        await other.load("a")
        assert bench.control.loads == ["a"]


async def test_one_that_was_asked_for_goes_on_when_its_gateway_leaves() -> None:
    async with Bench().running() as bench:
        gateway, other = await bench.gateway().connected(), await bench.gateway().connected()
        bench.control.calls.hold()
        loading = asyncio.get_running_loop().create_task(gateway.load("a"))
        await settle()
        gateway.is_reachable = False
        gateway.wires[-1].to_node.put_nowait(None)
        with pytest.raises(UpstreamUnavailable):
            await loading
        bench.control.calls.may_answer.set()
        await asyncio.sleep(4.0)
        assert bench.control.states == {"a": ModelState.READY}
        assert other.knows("a") is not None


async def test_files_are_held_and_models_replaced_for_as_long_as_the_gateway_wants() -> None:
    async with Bench().running() as bench:
        gateway = await bench.gateway().connected()
        async with gateway.instance.held_locally("a"), gateway.instance.replacing(["a"]):
            assert bench.files.held_now == ["a"]
            assert not bench.models.is_dead("a")
        await settle()
        assert bench.files.held_now == []
        async with gateway.instance.held_locally("b"):
            gateway.wires[-1].to_node.put_nowait(None)
            await settle()
            assert bench.files.held_now == []


async def test_what_a_fetch_has_shown_of_a_model_is_known_before_it_is_loaded() -> None:
    async with Bench().running() as bench:
        gateways = [await bench.gateway().connected() for _ in range(2)]
        bench.files.put_in_store(described := DescribedModel(ModelSpec("c", resident_bytes=70), 60, changed_ns=1))
        await asyncio.sleep(2.0)
        for gateway in gateways:
            assert gateway.node.models["c"].fetch_s == 3.0
        async with gateways[0].instance.held_locally("c"):
            assert gateways[0].node.models["c"] == described
            await settle()
            assert gateways[1].node.models["c"] == described


async def test_what_is_known_of_requests_stubs_and_memory_comes_across() -> None:
    async with Bench().running() as bench:
        gateway = await bench.gateway().connected()
        assert await gateway.instance.held_memory() == HeldMemory(1000, 50)
        gateway.awaited = {"a": 3.0}
        await asyncio.sleep(1.0)
        assert bench.now_s() - 4.5 < bench.service.oldest_s("a") <= bench.now_s() - 3.0
        gateway.node.suspect("a", bench.now_s() - 7.0)
        bench.service.stub_died("a", "was killed")
        await settle()
        assert bench.suspected == [("a", bench.now_s() - 7.0)]
        assert gateway.deaths == [("s0", "a", "was killed")]


async def test_models_that_come_and_go_in_the_folders_are_told() -> None:
    async with Bench().running() as bench:
        gateway = await bench.gateway().connected()
        del bench.files.models["a"]
        bench.files.models |= NodeFilesOf("c").models
        await asyncio.sleep(1.5)
        assert set(gateway.node.models) == set(gateway.node.costs) == {"b", "c"}
        assert gateway.instance.described() == gateway.node.models


async def test_models_that_went_while_it_was_away_are_gone() -> None:
    async with Bench().running() as bench:
        gateway = await bench.gateway().connected()
        gateway.is_reachable = False
        gateway.wires[-1].to_node.put_nowait(None)
        await gateway.node.wait_until(lambda: not gateway.node.is_connected)
        assert set(gateway.node.models) == {"a", "b"}, "it may be back in a moment"
        del bench.files.models["a"]
        await asyncio.sleep(6.0)
        gateway.is_reachable = True
        await gateway.connected()
        assert set(gateway.node.models) == set(gateway.node.costs) == {"b"}


async def test_what_goes_wrong_in_one_call_is_told_and_ends_nothing_else() -> None:
    async with Bench().running() as bench:
        gateway = await bench.gateway().connected()

        def broken(name: str) -> None:
            raise ZeroDivisionError

        bench.control.on_load = broken
        with pytest.raises(UpstreamFailed, match="ZeroDivisionError"):
            await gateway.load("a")
        bench.control.on_load = lambda name: None
        await gateway.load("b")


async def test_calls_fail_at_once_while_the_node_is_away() -> None:
    async with Bench().running() as bench:
        gateway = await bench.gateway().connected()
        gateway.is_reachable = False
        gateway.wires[-1].to_node.put_nowait(None)
        await gateway.node.wait_until(lambda: not gateway.node.is_connected)
        with pytest.raises(UpstreamUnavailable, match="is away"):
            await gateway.load("a")
        assert await gateway.instance.held_memory() is None
