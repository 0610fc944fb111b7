"""Tests of the runner of a sharded model's steps: order, what runs at once, cancellation, and the bytes in between."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from control_plane.core.errors import ControlPlaneError, InvalidRequest, Overloaded, PayloadTooLarge
from control_plane.core.tensor import RawTensor, Tensor
from control_plane.frontends.common.body_budget import BodyBudget
from control_plane.sharding.domain.plan import Step, read_plan
from control_plane.sharding.steps import StepRun, held_bytes
from tests.aio import run, settle
from tests.unit.sharding.domain.configs import CHAIN, config

_FORK = config(
    ("split", {"x": "X"}, {"l": "L", "r": "R"}),
    ("left", {"l": "L"}, {"a": "A"}),
    ("right", {"r": "R"}, {"b": "B"}),
    ("join", {"a": "A", "b": "B"}, {"y": "Y"}),
)


def _raw(data: bytes) -> RawTensor:
    return RawTensor(Tensor("T", "UINT8", (len(data),)), data)


class _Parts:
    """Fake parts: each gives for every wanted output its inputs' bytes and its own name."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.cancelled: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.errors: dict[str, ControlPlaneError] = {}

    async def compute(self, step: Step, inputs: Mapping[str, RawTensor], wanted: Sequence[str]) -> Mapping[str, RawTensor]:
        self.began.append(step.model)
        try:
            if step.model in self.gates:
                await self.gates[step.model].wait()
        except asyncio.CancelledError:
            self.cancelled.append(step.model)
            raise
        if step.model in self.errors:
            raise self.errors[step.model]
        data = b"+".join(bytes(raw.data) for raw in inputs.values())
        return {name: _raw(b"%b(%b)" % (step.model.encode(), data)) for name in wanted}

    def run(self, text: str, *outputs: str) -> StepRun:
        return StepRun(read_plan(text).steps_for(outputs), {"X": _raw(b"x")}, outputs, optional=(), compute=self.compute)


def test_a_chain_is_carried_out_in_order() -> None:
    async def test() -> None:
        parts = _Parts()
        tensors = await parts.run(CHAIN, "Y").run()
        assert tensors["Y"].data == b"back(front(x))"
        assert parts.began == ["front", "back"]

    run(test())


def test_independent_steps_run_at_the_same_time_and_join() -> None:
    async def test() -> None:
        parts = _Parts()
        parts.gates = {"left": asyncio.Event(), "right": asyncio.Event()}
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(parts.run(_FORK, "Y").run())
            await settle()
            assert sorted(parts.began) == ["left", "right", "split"]
            parts.gates["right"].set()
            parts.gates["left"].set()
        assert running.result()["Y"].data == b"join(left(split(x))+right(split(x)))"
        assert parts.began.count("join") == 1

    run(test())


def test_the_first_error_is_raised_by_itself_and_cancels_the_others() -> None:
    async def test() -> None:
        parts = _Parts()
        parts.gates = {"left": asyncio.Event()}
        parts.errors = {"right": InvalidRequest("no")}
        with pytest.raises(InvalidRequest, match="no"):
            await parts.run(_FORK, "Y").run()
        assert parts.cancelled == ["left"]
        assert "join" not in parts.began

    run(test())


def test_a_caller_that_leaves_cancels_the_steps_under_way() -> None:
    async def test() -> None:
        parts = _Parts()
        parts.gates = {"left": asyncio.Event(), "right": asyncio.Event()}
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(parts.run(_FORK, "Y").run())
            await settle()
            running.cancel()
        assert sorted(parts.cancelled) == ["left", "right"]

    run(test())


def test_an_optional_input_that_is_missing_is_left_out_of_its_step() -> None:
    async def test() -> None:
        text, parts = config(("a", {"x": "X", "w": "W"}, {"y": "Y"}), inputs="XW", W={"optional": True}), _Parts()
        run = StepRun(read_plan(text).steps, {"X": _raw(b"x")}, ["Y"], optional=["W"], compute=parts.compute)
        assert (await run.run())["Y"].data == b"a(x)"

    run(test())


def test_the_bytes_in_between_are_bounded_and_given_back() -> None:
    budget = BodyBudget(2**20)
    with held_bytes(budget, most=300_000) as held:
        held.take(200_000)
        assert budget.held_bytes == 200_000
        held.take(1000)  # so little is not counted, as of small bodies
        assert budget.held_bytes == 200_000
        with pytest.raises(PayloadTooLarge, match="more than 300000 bytes"):
            held.take(100_000)
    assert budget.held_bytes == 0


def test_without_room_for_the_bytes_in_between_the_request_is_refused() -> None:
    budget = BodyBudget(100_000)
    with held_bytes(budget, most=2**20) as held:
        held.take(80_000)
        with held_bytes(budget, most=2**20) as other, pytest.raises(Overloaded, match="no memory is free for 80000 bytes"):
            other.take(80_000)
        assert budget.held_bytes == 80_000
    assert budget.held_bytes == 0
