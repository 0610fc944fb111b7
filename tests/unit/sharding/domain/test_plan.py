"""Tests of the plan of a sharded model: the order of its steps, what is left out, and what is refused."""

from __future__ import annotations

import pytest

from control_plane.core.errors import ModelLoadFailed
from control_plane.sharding.domain.plan import MAX_STEPS, read_plan
from tests.unit.sharding.domain.configs import CHAIN, Maps, config


def test_steps_are_put_behind_those_that_they_take_tensors_from() -> None:
    plan = read_plan(CHAIN)
    assert plan.parts == ("front", "back")
    assert [step.inputs for step in plan.steps] == [(("x", "X"),), (("h", "H"),)]


def test_a_version_of_minus_one_is_the_one_that_the_parts_policy_chooses() -> None:
    assert [step.version for step in read_plan(CHAIN).steps] == ["", ""]
    assert read_plan(CHAIN.replace('-1, "input_map": {"x"', '3, "input_map": {"x"')).steps[0].version == "3"


def test_strings_are_bytes_and_inputs_may_be_optional() -> None:
    plan = read_plan(config(("a", {"x": "X"}, {"y": "Y"}), X={"data_type": "TYPE_STRING", "optional": True}))
    assert (plan.inputs[0].datatype, plan.inputs[0].is_optional) == ("BYTES", True)


def test_steps_that_no_wanted_output_needs_are_left_out() -> None:
    plan = read_plan(config(("a", {"x": "X"}, {"h": "H"}), ("b", {"h": "H"}, {"y": "Y"}), ("c", {"x": "X"}, {"z": "Z"}), outputs="YZ"))
    assert [step.model for step in plan.steps_for(["Y"])] == ["a", "b"]
    assert [step.model for step in plan.steps_for(["Z"])] == ["c"]
    assert len(plan.steps_for(["Y", "Z"])) == 3


_A: Maps = ("a", {"x": "X"}, {"y": "Y"})


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        pytest.param([], "it has 0 steps", id="no steps"),
        pytest.param([_A] * (MAX_STEPS + 1), f"it has {MAX_STEPS + 1} steps", id="too many steps"),
        pytest.param(
            [("a", {"x": "P"}, {"q": "Q"}), ("b", {"q": "Q"}, {"p": "P", "y": "Y"})], "wait for each other: 'a', 'b'", id="a circle"
        ),
        pytest.param([("a", {"x": "Q"}, {"y": "Y"})], "no step gives 'Q', which 'a' takes", id="an input that nobody gives"),
        pytest.param([("a", {"x": "X"}, {"z": "Z"})], "no step gives the output 'Y'", id="an output that nobody gives"),
        pytest.param([_A, ("b", {"x": "X"}, {"y": "Y"})], "'Y' is given twice, by 'a' and by 'b'", id="a tensor given twice"),
        pytest.param([("a", {"x": "X"}, {"x": "X", "y": "Y"})], "'X' is given twice, by the request", id="an input given again"),
        pytest.param([("a", {}, {"y": "Y"})], "'a' has no input_map", id="no input map"),
        pytest.param([("a", {"x": "X"}, {})], "'a' has no output_map", id="no output map"),
        pytest.param([("", {"x": "X"}, {"y": "Y"})], "names no model", id="no model"),
        pytest.param([("whole", {"x": "X"}, {"y": "Y"})], "'whole' itself", id="itself"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_is_refused_with_the_reason(steps: list[Maps], text: str) -> None:
    with pytest.raises(ModelLoadFailed, match=text):
        read_plan(config(*steps))


@pytest.mark.parametrize("said", ["", "[]", "{}", '{"name":"a","input":1,"output":[],"ensemble_scheduling":{"step":[]}}'])
def test_what_is_no_ensemble_is_refused(said: str) -> None:
    with pytest.raises(ModelLoadFailed, match="the configuration of an ensemble"):
        read_plan(said)
