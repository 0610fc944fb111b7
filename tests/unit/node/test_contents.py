"""What gateways know of a node's contents: never what is no longer so, whoever freezes, leaves or is cut off."""

from __future__ import annotations

import asyncio

import pytest

from control_plane.node.board import NodeBoard
from control_plane.node.domain.promises import HELD_S, PING_EVERY_S, VALID_S, Promises
from tests.aio import hold_up, settle
from tests.unit.node.bench import Bench, Gateway

pytestmark = pytest.mark.virtual_time


async def test_all_gateways_know_what_one_has_loaded_and_forget_it_before_it_changes() -> None:
    async with Bench().running() as bench:
        one, other = await bench.gateway().connected(), await bench.gateway().connected()
        await one.load("a")
        first = one.knows("a")
        assert first is not None
        assert other.knows("a") == first
        seen: list[bytes | None] = []
        bench.control.on_load = lambda name: seen.extend(gateway.knows("a") for gateway in (one, other))
        bench.reading.files["a"] = "second"
        await one.load("a")
        assert seen == [None, None], "while Triton loads"
        assert other.knows("a") == one.knows("a") != first
        await other.instance.unload_now("a")
        assert one.knows("a") is other.knows("a") is None
        assert (await one.node.connector.connect(timeout_s=1.0)) is not None


@pytest.mark.parametrize("ahead_s", [1e6, -1e6], ids=["the gateway is ahead", "the node is ahead"])
async def test_clocks_that_differ_change_nothing(ahead_s: float) -> None:
    async with Bench().running() as bench:
        gateway = await bench.gateway(ahead_s=ahead_s).connected()
        await gateway.load("a")
        known = gateway.knows("a")
        assert known is not None
        await asyncio.sleep(30.0)
        assert gateway.knows("a") == known, "it is relied on for as long as the node answers"
        gateway.silence()
        await asyncio.sleep(2.0)
        assert gateway.knows("a") is None, "and no longer"


async def test_one_that_connects_later_knows_it_as_well() -> None:
    async with Bench().running() as bench:
        one = await bench.gateway().connected()
        await one.load("a")
        later = await bench.gateway().connected()
        assert later.knows("a") == one.knows("a") is not None
        assert set(later.node.models) == set(later.node.costs) == {"a", "b"}


async def test_what_changes_before_the_first_pong_takes_nothing_from_what_was_said_first() -> None:
    """Two gateways: the node waits for one to acknowledge, and so does not cut off the other, to which it has promised nothing."""
    async with Bench().running() as bench:
        one = await bench.gateway().connected()
        await one.load("a")
        later = bench.gateway()
        while not (later.wires and later.wires[-1].to_gateway.qsize()):
            await asyncio.sleep(0)
        one.workers.are_quick.clear()
        asyncio.get_running_loop().call_later(1.0, one.workers.are_quick.set)
        await bench.board.publish({"b": None})
        await later.connected()
        assert len(later.wires) == 1
        assert later.knows("a") == one.knows("a") is not None


@pytest.mark.parametrize("way", ["frozen", "broken"])
async def test_a_gateway_that_hears_nothing_knows_nothing_before_the_node_goes_on(way: str) -> None:
    async with Bench().running() as bench:
        one, lost = await bench.gateway().connected(), await bench.gateway().connected()
        await one.load("a")
        before = lost.knows("a")
        assert before is not None
        bench.reading.files["a"] = "second"
        seen: list[bytes | None] = []
        bench.control.on_load = lambda name: seen.append(lost.knows("a"))
        if way == "frozen":
            lost.freeze()
        else:
            lost.is_reachable = False
            wire = lost.wires[-1]
            wire.to_node.put_nowait(None)  # the node sees the end, the gateway does not
            wire.to_gateway = asyncio.Queue()
        began_s = bench.now_s()
        await one.load("a")
        assert seen == [None]
        assert VALID_S <= bench.now_s() - began_s <= HELD_S + 0.1, "it has waited for the lost one, and no longer"
        assert one.knows("a") not in (None, before)
        assert lost.knows("a") != before


async def test_a_gateway_that_stood_still_knows_nothing_when_it_goes_on() -> None:
    """Not even before its first timer has run."""
    async with Bench().running() as bench:
        gateway = await bench.gateway().connected()
        await gateway.load("a")
        assert gateway.knows("a") is not None
        generation = gateway.fingerprints.generation
        hold_up(VALID_S)
        assert gateway.knows("a") is None
        assert gateway.fingerprints.generation != generation
        assert gateway.fingerprints.generation != gateway.fingerprints.generation, "nothing that is cached meanwhile holds"


async def test_a_half_open_connection_is_known_within_two_seconds_and_made_anew() -> None:
    async with Bench().running() as bench:
        gateway = await bench.gateway().connected()
        await gateway.load("a")
        gateway.freeze()
        await asyncio.sleep(VALID_S)
        await settle()
        assert not gateway.node.is_connected
        await gateway.connected()
        assert len(gateway.wires) == 2
        assert gateway.knows("a") is not None


async def test_a_node_that_has_just_started_changes_nothing_while_promises_before_it_may_hold() -> None:
    now_s = asyncio.get_running_loop().time
    board, began_s = NodeBoard(Promises(now_s()), now_s=now_s), now_s()
    await board.make_unknown(["a"])
    assert now_s() - began_s >= HELD_S
    await board.make_unknown(["b"])
    assert now_s() - began_s < HELD_S + 0.1


async def test_who_says_goodbye_is_not_waited_for() -> None:
    async with Bench().running() as bench:
        one, leaves = await bench.gateway().connected(), await bench.gateway().connected()
        await one.load("a")
        leaves.run.cancel()
        await asyncio.wait([leaves.run])
        await settle()
        began_s = bench.now_s()
        await one.load("a")
        assert bench.now_s() - began_s < PING_EVERY_S


async def test_a_new_triton_has_nothing_loaded() -> None:
    async with Bench().running() as bench:
        gateway = await bench.gateway().connected()
        await gateway.load("a")
        life = gateway.node.life
        await bench.start_triton()
        await gateway.node.wait_until(lambda: gateway.node.life not in ("", life))
        assert gateway.knows("a") is None


async def test_what_another_server_has_counts_again_once_this_one_is_gone() -> None:
    async with Bench().running() as bench:
        gateway: Gateway = await bench.gateway().connected()
        other = gateway.board.of_server("other")
        await gateway.load("a")
        known = gateway.fingerprints.get("a")
        assert known is not None
        await other.publish({"a": known})
        gateway.is_reachable = False
        gateway.wires[-1].to_gateway.put_nowait(None)
        await gateway.node.wait_until(lambda: not gateway.node.is_connected)
        await settle()
        assert gateway.knows("a") is None, "the lost server may have anything by now"
        await gateway.node.forget_contents()
        assert gateway.knows("a") == known.digest
