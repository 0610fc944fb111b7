"""Tests of requests for sharded models against their configuration; tests/contract has Triton say the same."""

from __future__ import annotations

import pytest

from control_plane.core.errors import InvalidRequest
from control_plane.core.tensor import RawTensor, Tensor
from control_plane.sharding.domain.plan import read_plan
from control_plane.sharding.domain.request_check import check_inputs, wanted_outputs
from tests.unit.sharding.domain.configs import config

_PLAN = read_plan(config(("a", {"x": "X", "w": "W"}, {"y": "Y", "z": "Z"}), inputs="XW", outputs="YZ", W={"optional": True}, dims=(2,)))


def _inputs(**shapes: tuple[int, ...]) -> dict[str, RawTensor]:
    return {name: RawTensor(Tensor(name, "FP32", shape), b"") for name, shape in shapes.items()}


def test_a_right_request_passes() -> None:
    check_inputs(_PLAN, "", _inputs(X=(8, 2)))
    check_inputs(_PLAN, "", _inputs(X=(1, 2), W=(1, 2)))


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        pytest.param(_inputs(W=(1, 2)), r"missing required input\(s\) \['X'\]", id="missing"),
        pytest.param(_inputs(X=(1, 2), W=(1, 2), Q=(1, 2)), "expected 2 inputs but got 3", id="too many"),
        pytest.param(_inputs(X=(1, 2), Q=(1, 2)), "unexpected inference input 'Q'", id="unknown"),
        pytest.param({"X": RawTensor(Tensor("X", "INT8", (1, 2)), b"")}, "is 'INT8', but model 'whole' expects 'FP32'", id="data type"),
        pytest.param(_inputs(X=(1, 3)), r"Expected \[-1,2\], got \[1,3\]. NOTE", id="dimension"),
        pytest.param(_inputs(X=(2,)), r"Expected \[-1,2\], got \[2\]", id="rank"),
        pytest.param(_inputs(X=(9, 2)), "batch-size must be <= 8", id="batch"),
        pytest.param(_inputs(X=(1, 2), W=(2, 2)), "batch size does not match other inputs", id="two batch sizes"),
    ],
)
def test_a_wrong_request_is_refused_in_tritons_words(inputs: dict[str, RawTensor], text: str) -> None:
    with pytest.raises(InvalidRequest, match=text) as refused:
        check_inputs(_PLAN, "7", inputs)
    assert str(refused.value).startswith("[request id: 7] ")


def test_without_batches_a_shape_is_as_declared() -> None:
    plan = read_plan(config(("a", {"x": "X"}, {"y": "Y"}), dims=(2,), max_batch_size=0))
    check_inputs(plan, "", _inputs(X=(2,)))
    with pytest.raises(InvalidRequest, match=r"got \[1,2\]\.$"):
        check_inputs(plan, "", _inputs(X=(1, 2)))


def test_outputs_come_in_the_order_of_an_ensembles_and_unknown_ones_are_refused() -> None:
    assert wanted_outputs(_PLAN, ()) == ("Z", "Y")
    assert wanted_outputs(_PLAN, ("Y",)) == ("Y",)
    with pytest.raises(InvalidRequest, match="unexpected inference output 'Q' for model 'whole'"):
        wanted_outputs(_PLAN, ("Y", "Q"))
