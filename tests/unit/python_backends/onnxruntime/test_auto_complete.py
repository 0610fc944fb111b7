"""Completing a configuration from the ONNX file, by the native backend's rules."""

from __future__ import annotations

from typing import Any

import pytest

from python_backends.onnxruntime.auto_complete import complete, is_complete
from python_backends.runtime.errors import ConfigError
from python_backends.runtime.signature import Signature, TensorSignature
from tests.unit.python_backends.configs import config_json, tensor

BATCHED = Signature((TensorSignature("X", "TYPE_INT64", (-1, -1)),), (TensorSignature("Y", "TYPE_FP32", (-1, 384)),))
FIXED = Signature((TensorSignature("X", "TYPE_FP32", (1, 3)),), (TensorSignature("Y", "TYPE_FP32", (1, 2)),))


def completed(signature: Signature, **changes: Any) -> dict[str, Any]:
    return complete(config_json(**changes), signature)


def test_a_file_without_configuration_that_can_be_batched() -> None:
    result = completed(BATCHED)

    assert result["max_batch_size"] == 4
    assert result["dynamic_batching"] == {}
    assert result["input"] == [{"name": "X", "data_type": "TYPE_INT64", "dims": [-1]}]
    assert result["output"] == [{"name": "Y", "data_type": "TYPE_FP32", "dims": [384]}]


def test_a_file_without_configuration_that_cannot_be_batched() -> None:
    result = completed(FIXED)

    assert result["max_batch_size"] == 0
    assert "dynamic_batching" not in result
    assert result["input"] == [{"name": "X", "data_type": "TYPE_FP32", "dims": [1, 3]}]
    assert result["output"] == [{"name": "Y", "data_type": "TYPE_FP32", "dims": [1, 2]}]


def test_what_is_configured_stays() -> None:
    inputs, batching = [tensor("X", "TYPE_INT64", [16])], {"max_queue_delay_microseconds": 500}

    result = completed(BATCHED, max_batch_size=32, input=inputs, dynamic_batching=batching)

    assert (result["max_batch_size"], result["input"], result["dynamic_batching"]) == (32, inputs, batching)
    assert result["output"] == [{"name": "Y", "data_type": "TYPE_FP32", "dims": [384]}]


def test_a_batch_of_one_needs_no_batcher() -> None:
    assert "dynamic_batching" not in completed(BATCHED, max_batch_size=1)


def test_a_sequence_batcher_is_not_joined_by_a_dynamic_one() -> None:
    assert "dynamic_batching" not in completed(BATCHED, sequence_batching={})


def test_batching_that_the_file_cannot_do_is_refused() -> None:
    with pytest.raises(ConfigError, match="autofill failed for model 'm': model does not support batching"):
        completed(FIXED, max_batch_size=8)


def test_a_tensor_that_is_only_a_batch_gets_a_reshape() -> None:
    labels = Signature((TensorSignature("X", "TYPE_FP32", (-1, 2)),), (TensorSignature("LABEL", "TYPE_INT64", (-1,)),))

    assert completed(labels)["output"] == [{"name": "LABEL", "data_type": "TYPE_INT64", "dims": [1], "reshape": {"shape": []}}]


def test_a_scalar_gets_a_dimension_but_no_reshape_which_triton_would_refuse() -> None:
    scalar = Signature((TensorSignature("X", "TYPE_FP32", ()),), (TensorSignature("Y", "TYPE_FP32", ()),))

    assert completed(scalar)["input"] == [{"name": "X", "data_type": "TYPE_FP32", "dims": [1]}]


def test_the_configuration_given_is_not_changed() -> None:
    given = config_json()

    complete(given, BATCHED)

    assert given == config_json()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({}, False, id="nothing"),
        pytest.param({"input": [tensor("X")]}, False, id="inputs-only"),
        pytest.param({"output": [tensor("Y")]}, False, id="outputs-only"),
        pytest.param({"input": [tensor("X")], "output": [tensor("Y")]}, True, id="both"),
    ],
)
def test_only_an_open_configuration_needs_the_file(changes: dict[str, Any], expected: bool) -> None:
    assert is_complete(config_json(**changes)) is expected
