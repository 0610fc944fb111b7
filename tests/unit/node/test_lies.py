"""A node that lies, and a gateway that does: cut off with a reason, and neither costs the other more than that."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import orjson
import pytest

from control_plane.core.errors import InvalidRequest, UpstreamUnavailable
from control_plane.core.model import ModelVersion
from control_plane.node.domain.messages import (
    Contents,
    Done,
    Hold,
    Leave,
    LookMemory,
    Prepare,
    Replace,
    StubDied,
    Suspect,
    Unload,
    WrongMessage,
    decode,
    encode,
)
from tests.aio import settle
from tests.unit.node.bench import Bench

pytestmark = pytest.mark.virtual_time

HUGE = 2**62


def model(**fields: Any) -> dict[str, Any]:
    """A description of model `m`, some of it a lie."""
    spec = {"name": "m", **{name.removeprefix("spec_"): value for name, value in fields.items() if name.startswith("spec_")}}
    described = {"spec": spec, "file_bytes": 1, **{name: value for name, value in fields.items() if not name.startswith("spec_")}}
    return {"models": {"m": described}, "costs": {}}


def cost(lengths: list[Any], ms: list[Any]) -> dict[str, Any]:
    return {"models": {}, "costs": {"m": {"table": {"lengths": lengths, "ms_at_batch_1": ms}}}}


LIES = [
    pytest.param("Described", model(file_bytes=-1), id="a negative size"),
    pytest.param("Described", model(file_bytes=HUGE), id="a size that no disk has"),
    pytest.param("Described", model(spec_resident_bytes=-5), id="a negative need"),
    pytest.param("Described", model(spec_min_replicas=-1), id="fewer replicas than none"),
    pytest.param("Described", model(spec_max_replicas=10**12), id="replicas without number"),
    pytest.param("Described", model(spec_instances=0), id="no instance"),
    pytest.param("Described", model(spec_latency_objective_s=-1.0), id="an objective in the past"),
    pytest.param("Described", model(spec_name="other"), id="another model's description"),
    pytest.param("Described", model(changed_ns=1e30), id="a change beyond all time"),
    pytest.param("Described", model(fetch_s=-1.0), id="a fetch that ended before it began"),
    pytest.param("Described", cost([], []), id="an empty table"),
    pytest.param("Described", cost([8, 4], [1.0, 2.0]), id="a table that descends"),
    pytest.param("Described", cost([8], [0.0]), id="a time of nothing"),
    pytest.param("Described", cost([0, 8], [1.0, 2.0]), id="a length of nothing"),
    pytest.param("Memory", {"number": 1, "held": {"host_bytes": -1}}, id="negative memory"),
    pytest.param("Memory", {"number": 1, "held": {"host_bytes": 1, "gpu_bytes": HUGE}}, id="memory that no GPU has"),
    pytest.param("Contents", {"number": 1e30, "changes": {}}, id="a number that cannot be sent back"),
    pytest.param("Index", {"number": 0, "edition": -1, "lines": []}, id="a negative edition"),
    pytest.param("Pong", {"sent_s": 1e15}, id="an answer to a ping of the future"),
    pytest.param("Load", {"number": 1, "prepared": 1, "term": {"fleet": "f", "token": 1}}, id="a command to a gateway"),
]


async def test_of_a_node_that_says_more_than_is_taken_in_no_more_is_read() -> None:
    async with Bench().running() as bench:
        gateway = await bench.gateway().connected()
        gateway.workers.are_quick.clear()
        wire = gateway.wires[-1].to_gateway
        for said in (Contents(7, {"a": None}, ()), *(StubDied("a", str(number)) for number in range(1000))):
            wire.put_nowait(encode(said))
        await settle()
        assert wire.qsize() > 900
        gateway.workers.are_quick.set()
        await gateway.node.wait_until(lambda: len(gateway.deaths) == 1000)
        assert [how for _, _, how in gateway.deaths] == [str(number) for number in range(1000)], "none is lost"


async def test_a_node_that_answers_what_nobody_asked_gets_little_of_each_turn() -> None:
    async with Bench().running() as bench:
        gateway = await bench.gateway().connected()
        wire = gateway.wires[-1].to_gateway
        for _ in range(1000):
            wire.put_nowait(encode(Done(77)))
        await settle()
        assert wire.qsize() > 900
        assert gateway.node.is_connected


async def test_a_gateway_that_floods_its_node_gets_little_of_each_turn() -> None:
    async with Bench().running() as bench:
        gateway = await bench.gateway().connected()
        wire = gateway.wires[-1].to_node
        for _ in range(1000):
            wire.put_nowait(encode(Leave(77, is_well=True)))
        await settle()
        assert wire.qsize() > 900
        assert gateway.node.is_connected


@pytest.mark.parametrize(("kind", "fields"), LIES)
async def test_a_node_that_lies_is_cut_off_and_the_gateway_goes_on(kind: str, fields: dict[str, Any]) -> None:
    async with Bench().running() as bench:
        gateway = await bench.gateway().connected()
        before = dict(gateway.node.models), dict(gateway.node.costs)
        gateway.wires[-1].to_gateway.put_nowait(orjson.dumps([kind, fields]))
        await gateway.node.wait_until(lambda: not gateway.node.is_connected)
        assert "does not keep to the protocol" in gateway.node.why_away
        assert not gateway.run.done()
        await gateway.connected()
        assert (dict(gateway.node.models), dict(gateway.node.costs)) == before


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b'["Pong",{"sent_s":NaN}]', id="no number"),
        pytest.param(b'["Pong",{"sent_s":1e999}]', id="infinity"),
        pytest.param(b'["StubDied",{"name":"\\ud800","how":""}]', id="half a character"),
        pytest.param(b'["Contents",' + b"[" * 100_000 + b"]" * 100_000 + b"]", id="deep"),
        pytest.param(b"[" * 100_000, id="deep without an end"),
    ],
)
def test_what_is_no_json_is_no_message(text: bytes) -> None:
    with pytest.raises(WrongMessage):
        decode(text)


async def test_what_a_nodes_words_lead_to_ends_no_gateway(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever the fleet makes of them: another server is nobody's fault."""

    async with Bench().running() as bench:
        gateway = await bench.gateway().connected()

        def fails(index: list[ModelVersion]) -> None:
            raise ZeroDivisionError

        gateway.node.on_index = fails
        with suppress(UpstreamUnavailable):  # the index is told before the answer
            await gateway.load("a")
        await gateway.node.wait_until(lambda: not gateway.node.is_connected)
        gateway.node.on_index = lambda index: None
        await gateway.connected()
    assert "the connection to the node of server s0 failed" in caplog.text


NAMES = ["../secret", "a/../../etc", "a\0", "/etc", "..", ".", "", "x" * 300]


@pytest.mark.parametrize("name", NAMES)
async def test_a_name_that_is_a_path_is_refused_and_nothing_is_touched(name: str) -> None:
    async with Bench().running() as bench:
        gateway = await bench.gateway().connected()
        node = gateway.node
        for number, message in enumerate(
            (
                Prepare(901, name),
                Hold(902, name),
                Replace(903, ("a", name)),
                Unload(904, name, unload_dependents=True, term=gateway.term()),
            ),
            start=901,
        ):
            with pytest.raises(InvalidRequest, match="cannot be a model's name"):
                await node.call(message, number, Done)
        assert bench.files.held_now == bench.control.loads == bench.control.unloads == []
        assert await gateway.instance.held_memory() is not None, "it is still connected"


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        pytest.param("Ping", {"sent_s": 1.0, "awaited": {"a": -5.0}}, id="a request of the future"),
        pytest.param("Suspect", {"name": "a", "silent_for_s": -1.0}, id="a silence of the future"),
        pytest.param("LookMemory", {"number": 1e30}, id="a number that cannot be sent back"),
        pytest.param("Acknowledge", {"number": -1}, id="a negative number"),
        pytest.param("LookIndex", {"number": 1, "known": 0, "term": {"fleet": "fleet", "token": 1e30}}, id="a token that no lease has"),
        pytest.param("Pong", {"sent_s": 1.0}, id="a node's word"),
        pytest.param("Hello", {"oldest": 1, "newest": 9, "nonce": "", "fleet": "f", "gateway": "g"}, id="a second greeting"),
    ],
)
async def test_a_gateway_that_lies_is_cut_off_and_the_others_are_served(kind: str, fields: dict[str, Any]) -> None:
    async with Bench().running() as bench:
        one, other = await bench.gateway().connected(), await bench.gateway().connected()
        one.wires[-1].to_node.put_nowait(orjson.dumps([kind, fields]))
        await one.node.wait_until(lambda: not one.node.is_connected)
        assert await other.instance.held_memory() is not None
        await other.load("a")


async def test_numbers_that_nobody_has_given_end_nothing() -> None:
    async with Bench().running() as bench:
        gateway = await bench.gateway().connected()
        for message in (Leave(77, is_well=True), Suspect("nonesuch", 1.0), LookMemory(0)):
            gateway.wires[-1].to_node.put_nowait(encode(message))
        await settle()
        await gateway.load("a")
