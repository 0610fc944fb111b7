from __future__ import annotations

from typing import Any

import pytest

from control_plane.rollout.domain.contract import breaks, contract_of

X = {"name": "X", "data_type": "TYPE_FP32", "dims": [-1, 4]}
Y = {"name": "Y", "data_type": "TYPE_FP32", "dims": [384]}


def config(**more: Any) -> dict[str, Any]:
    return {"max_batch_size": 8, "input": [X], "output": [Y], **more}


@pytest.mark.parametrize(
    ("candidate", "broken"),
    [
        pytest.param(config(), [], id="the same"),
        pytest.param(config(max_batch_size=16), [], id="a larger batch"),
        pytest.param(config(input=[{**X, "dims": ["-1", "-1"]}]), [], id="takes more shapes"),
        pytest.param(config(input=[X, {**X, "name": "Z", "optional": True}]), [], id="another input that is optional"),
        pytest.param(config(output=[Y, {**Y, "name": "Z"}]), [], id="another output"),
        pytest.param(config(max_batch_size=4), ["max_batch_size was 8 and is 4"], id="a smaller batch"),
        pytest.param(config(max_batch_size=0), ["max_batch_size was 8 and is 0"], id="no batches"),
        pytest.param(config(input=[]), ["input X (FP32[-1, 4]) is gone"], id="no input"),
        pytest.param(config(input=[{**X, "data_type": "TYPE_FP16"}]), ["input X was FP32[-1, 4] and is FP16[-1, 4]"], id="another type"),
        pytest.param(config(input=[{**X, "dims": [2, 4]}]), ["input X was FP32[-1, 4] and is FP32[2, 4]"], id="fewer shapes"),
        pytest.param(config(input=[{**X, "dims": [4]}]), ["input X was FP32[-1, 4] and is FP32[4]"], id="another rank"),
        pytest.param(config(input=[X, {**X, "name": "Z"}]), ["input Z (FP32[-1, 4]) is new and required"], id="another input"),
        pytest.param(config(output=[{**Y, "dims": [768]}]), ["output Y was FP32[384] and is FP32[768]"], id="another size of output"),
        pytest.param(config(output=[{**Y, "dims": [-1]}]), ["output Y was FP32[384] and is FP32[-1]"], id="an output of any size"),
        pytest.param(config(output=[]), ["output Y (FP32[384]) is gone"], id="no output"),
        pytest.param(config(model_transaction_policy={"decoupled": True}), ["it is decoupled, unlike the present model"], id="decoupled"),
        pytest.param(config(sequence_batching={"direct": {}}), ["it has sequences, unlike the present model"], id="sequences"),
    ],
)
def test_what_breaks_callers_is_told(candidate: dict[str, Any], broken: list[str]) -> None:
    assert breaks(contract_of(config()), contract_of(candidate)) == broken


def test_an_input_that_becomes_required_breaks_who_left_it_out() -> None:
    stable = contract_of(config(input=[{**X, "optional": True}]))
    assert breaks(stable, contract_of(config())) == ["input X was optional and is required"]
