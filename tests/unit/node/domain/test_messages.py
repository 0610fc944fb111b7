from __future__ import annotations

from typing import get_args

import orjson
import pytest

from control_plane.core.held_memory import HeldMemory
from control_plane.core.model import ModelState
from control_plane.metering.domain.compute_units import ModelCost, UnitTable
from control_plane.models.domain.description import DescribedModel, ModelSpec
from control_plane.node.domain import messages
from control_plane.node.domain.fence import Term
from control_plane.node.domain.messages import (
    Acknowledge,
    Challenge,
    Complete,
    Contents,
    Described,
    Done,
    Failed,
    First,
    FromGateway,
    FromNode,
    GatewayProof,
    Goodbye,
    Hello,
    Hold,
    Index,
    Leave,
    Load,
    LookIndex,
    LookMemory,
    Memory,
    Message,
    Ping,
    Pong,
    Prepare,
    Refused,
    Replace,
    StubDied,
    Suspect,
    TritonState,
    Unload,
    Welcome,
    WrongMessage,
    common_version,
    decode,
    encode,
    expect,
)

_TABLE = UnitTable((16, 128), (1.5, 9.0))
_MODEL = DescribedModel(
    ModelSpec("e", 5, min_replicas=1, max_replicas=2, latency_objective_s=0.1, server_labels={"gpu": "h200"}, is_repeatable=True),
    9,
    frozenset({"s"}),
    has_sequences=True,
    changed_ns=3,
    fetch_s=2.5,
)
EXAMPLES: tuple[Message, ...] = (
    Hello(1, 1, "ab", "fleet", "gateway"),
    Challenge(1, "cd", wants_secret=True),
    Refused("why"),
    GatewayProof(b"\x00\xff"),
    GatewayProof(b""),
    Welcome(b"\xfe", "run"),
    Ping(1.5, {"m": 2.5}),
    Acknowledge(3),
    LookIndex(1, 7, Term("fleet", 4)),
    LookIndex(1, 0, None),
    LookMemory(2),
    Prepare(3, "m"),
    Load(4, 3, Term("fleet", 4)),
    Unload(5, "m", unload_dependents=True, term=Term("fleet", 4)),
    Replace(6, ("a", "b")),
    Hold(7, "m"),
    Leave(7, is_well=True),
    Suspect("m", 1.5),
    Goodbye(),
    Pong(1.5),
    TritonState("life", ""),
    Described({"e": _MODEL, "gone": None}, {"e": ModelCost(_TABLE, ("s",), is_batched=False, by_variant={"v": _TABLE}), "gone": None}),
    Contents(8, {"m": (b"\x00digest", True, False, True), "n": None}, ("gone",)),
    Complete(),
    StubDied("m", "was killed"),
    Index(2, 7, None),
    Index(0, 8, [("m", "1", ModelState.READY, ""), ("n", "", ModelState.UNAVAILABLE, "why")]),
    Memory(9, None),
    Memory(9, HeldMemory(5)),
    Memory(9, HeldMemory(5, 6)),
    Done(10),
    Failed(11, "load_failed", "why", {"upstream_code": 13.0}),
)


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_a_message_comes_as_it_was_sent(message: Message) -> None:
    assert decode(encode(message)) == message


def test_how_long_a_fetch_takes_comes_along() -> None:
    """It is no part of what makes two descriptions differ."""
    found = decode(encode(Described({"e": _MODEL}, {})))
    assert isinstance(found, Described)
    assert found.models["e"] is not None
    assert found.models["e"].fetch_s == 2.5


def test_there_is_an_example_of_each() -> None:
    kinds = {*get_args(First), *get_args(FromGateway), *get_args(FromNode)}
    assert {type(message) for message in EXAMPLES} == kinds


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xff\xfe", id="no text"),
        pytest.param(b"{}", id="no pair"),
        pytest.param(b'["Later",{}]', id="a kind of a later version"),
        pytest.param(orjson.dumps(["Pong", {"sent_s": 1.0, "more": 1}]), id="a field of a later version"),
        pytest.param(orjson.dumps(["Prepare", {"number": 1}]), id="a field is missing"),
        pytest.param(orjson.dumps(["Prepare", {"number": "one", "name": "m"}]), id="another type"),
        pytest.param(
            orjson.dumps(["Index", {"number": 0, "edition": 1, "lines": [["m", "1", "PAUSED", ""]]}]), id="a state of a later Triton"
        ),
        pytest.param(orjson.dumps(["Load", {"number": 1, "prepared": 1, "term": {"fleet": "f"}}]), id="half a term"),
    ],
)
def test_what_is_not_understood_is_no_message(body: bytes) -> None:
    with pytest.raises(WrongMessage):
        decode(body)


def test_only_what_is_expected_will_do() -> None:
    assert expect(encode(Hello(1, 1, "", "", "")), Hello).oldest == 1
    for body in (None, encode(Refused("why"))):
        with pytest.raises(WrongMessage):
            expect(body, Hello)


@pytest.mark.parametrize(
    ("theirs", "ours", "common"),
    [
        ((1, 1), (1, 1), 1),
        ((1, 3), (2, 5), 3),
        ((4, 9), (2, 5), 5),
        ((1, 1), (2, 3), None),
        ((4, 9), (2, 3), None),
        ((9, 4), (2, 9), None),
    ],
)
def test_the_newest_version_that_both_speak_is_used(theirs: tuple[int, int], ours: tuple[int, int], common: int | None) -> None:
    assert common_version(*theirs, ours=ours) == common


def test_what_is_first_said_is_small_and_of_every_version() -> None:
    """A change of these two would keep programs from telling each other which versions they speak."""
    assert encode(Hello(1, 1, "n", "f", "g")) == b'["Hello",{"oldest":1,"newest":1,"nonce":"n","fleet":"f","gateway":"g"}]'
    assert encode(Refused("why")) == b'["Refused",{"reason":"why"}]'
    assert messages.MAX_FIRST_BYTES > 1000
