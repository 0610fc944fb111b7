"""Streamed responses as signs that a model computes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import pytest

from control_plane.core.errors import Recall, RecallCause, UpstreamUnavailable
from control_plane.triton.open_streams import MOST_SUSPECTS, OpenStreams
from tests.fakes import FakeHttpStream


@dataclass
class Clock:
    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_one_goes_on_while_something_has_come_lately() -> None:
    clock, stream = Clock(), FakeHttpStream()
    streams = OpenStreams(clock)
    streams.add("s0", "a", stream)
    assert not streams.go_on("s0", "a"), "nothing has come yet"
    stream.heard_s = 95.0
    assert streams.go_on("s0", "a")
    assert list(streams.going_on()) == [("s0", "a")]
    assert not streams.go_on("s0", "b")
    assert not streams.go_on("s1", "a")
    clock.now_s = 106.0
    assert not streams.go_on("s0", "a")
    assert not list(streams.going_on())


def test_of_several_one_is_enough_and_none_is_remembered() -> None:
    clock = Clock()
    streams = OpenStreams(clock)
    first, second = FakeHttpStream(heard_s=0.0), FakeHttpStream(heard_s=99.0)
    forget_first, forget_second = streams.add("s0", "a", first), streams.add("s0", "a", second)
    assert streams.go_on("s0", "a")
    forget_second()
    forget_second()
    assert not streams.go_on("s0", "a")
    first.heard_s = 100.0
    assert streams.go_on("s0", "a")
    forget_first()
    assert not streams.go_on("s0", "a")


async def test_with_a_models_process_those_end_that_have_begun_and_those_that_have_not() -> None:
    streams, begun, other = OpenStreams(), FakeHttpStream(), FakeHttpStream().put(b"x")
    streams.add("s0", "a", begun)
    streams.add("s1", "a", other)

    async def begin(server: str, model: str) -> str:
        return await streams.begin(server, model, asyncio.sleep(0.2, "begun"))

    async with asyncio.TaskGroup() as tasks:
        lost = tasks.create_task(_lost(begin("s0", "a")))
        others = [tasks.create_task(begin(*each)) for each in (("s0", "b"), ("s1", "a"))]
        await asyncio.sleep(0.01)
        streams.died("s0", "a")
        await asyncio.sleep(0)
        streams.died("s0", "a")
    assert [each.result() for each in others] == ["begun", "begun"]
    for error in (lost.result(), await _lost(begun.receive())):
        assert str(error) == "the Python process of 'a' on server 's0' has died; try again shortly"
        assert error.recall == Recall(RecallCause.STUB_DIED, is_suspect=True)
    assert await other.receive() == b"x"
    streams.died("s0", "c")


async def test_of_those_that_have_not_begun_the_oldest_are_suspect() -> None:
    streams = OpenStreams()
    async with asyncio.TaskGroup() as tasks:
        lost = [tasks.create_task(_lost(streams.begin("s0", "a", asyncio.sleep(5.0)))) for _ in range(MOST_SUSPECTS + 3)]
        await asyncio.sleep(0.01)
        streams.died("s0", "a")
    recalls = [error.recall for error in (each.result() for each in lost)]
    assert [recall is not None and recall.is_suspect for recall in recalls] == [True] * MOST_SUSPECTS + [False] * 3


async def _lost(asking: Coroutine[Any, Any, object]) -> UpstreamUnavailable:
    with pytest.raises(UpstreamUnavailable) as caught:
        await asking
    return caught.value


async def test_a_timeout_of_its_own_stays_one() -> None:
    async def times_out() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        await OpenStreams().begin("s0", "a", times_out())
