"""Backend `onnxruntime` from Triton's side: loading and answering, on real ONNX files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from python_backends.runtime.errors import ConfigError
from tests.unit.python_backends import tiny_onnx
from tests.unit.python_backends.configs import config_json, tensor
from tests.unit.python_backends.fake_triton import AutoCompleteConfig, InferenceResponse, Request, TritonError, initialize_args, stub


@pytest.fixture
def version_directory(tmp_path: Path) -> Path:
    return tmp_path / "m" / "1"


@pytest.fixture
def backend(version_directory: Path) -> Iterator[Any]:
    with stub("onnxruntime", version_directory) as backend:
        yield backend


def load(backend: Any, version_directory: Path, onnx_model: onnx.ModelProto, **changes: Any) -> Any:
    """Save, complete and initialize, as Triton does at a load."""
    tiny_onnx.save(onnx_model, version_directory / "model.onnx")
    completed = backend.auto_complete_config(AutoCompleteConfig(config_json(**changes))).as_dict()
    instance = backend()
    instance.initialize(initialize_args(version_directory, json.dumps(completed)))
    return instance


def ask(instance: Any, *tensors: dict[str, np.ndarray], outputs: tuple[str, ...] = ("Y",)) -> list[InferenceResponse]:
    responses: list[InferenceResponse] = instance.execute([Request(each, outputs) for each in tensors])
    return responses


@pytest.mark.parametrize(
    ("data_type", "array"),
    [
        pytest.param(TensorProto.BOOL, np.array([[True, False]]), id="bool"),
        pytest.param(TensorProto.UINT8, np.array([[0, 255]], np.uint8), id="uint8"),
        pytest.param(TensorProto.INT16, np.array([[-7, 7]], np.int16), id="int16"),
        pytest.param(TensorProto.INT64, np.array([[-(2**60), 2**60]], np.int64), id="int64"),
        pytest.param(TensorProto.FLOAT16, np.array([[0.5, -2]], np.float16), id="fp16"),
        pytest.param(TensorProto.FLOAT, np.array([[0.1, 1e30]], np.float32), id="fp32"),
        pytest.param(TensorProto.DOUBLE, np.array([[0.1, 1e300]], np.float64), id="fp64"),
    ],
)
def test_numbers_of_every_kind_pass_unchanged(backend: Any, version_directory: Path, data_type: int, array: np.ndarray) -> None:
    instance = load(backend, version_directory, tiny_onnx.identity(data_type, ["batch", 2]))

    (response,) = ask(instance, {"X": array})

    assert response.arrays()["Y"].dtype == array.dtype
    assert response.arrays()["Y"].tolist() == array.tolist()


def test_strings_pass_unchanged(backend: Any, version_directory: Path) -> None:
    instance = load(backend, version_directory, tiny_onnx.identity(TensorProto.STRING, ["batch", 1]))

    good, bad = ask(instance, {"X": np.array([["größe".encode()]], np.object_)}, {"X": np.array([[b"\xff"]], np.object_)})

    assert good.arrays()["Y"].tolist() == [["größe"]]
    assert bad.error is not None
    assert bad.error.code == TritonError.INVALID_ARG


def test_requests_of_different_shapes_are_answered_in_one_call(backend: Any, version_directory: Path) -> None:
    instance = load(backend, version_directory, tiny_onnx.bag_of_tokens())
    requests = [np.array([[1, 2]]), np.array([[3]]), np.array([[4, 5], [6, 7]])]

    responses = ask(instance, *({"INPUT_IDS": ids, "ATTENTION_MASK": np.ones_like(ids)} for ids in requests), outputs=("EMBEDDING",))

    table = np.arange(150.0).reshape(50, 3)
    assert [response.arrays()["EMBEDDING"].tolist() for response in responses] == [table[ids].sum(axis=1).tolist() for ids in requests]


def test_a_request_gets_the_outputs_that_it_asks_for(backend: Any, version_directory: Path) -> None:
    instance = load(backend, version_directory, tiny_onnx.sum_and_difference())
    one = np.ones((1, 2), np.float32)

    (response,) = ask(instance, {"A": one, "B": one}, outputs=("DIFFERENCE",))

    assert {name: array.tolist() for name, array in response.arrays().items()} == {"DIFFERENCE": [[0, 0]]}


def test_a_model_configured_without_batch_answers_each_request_by_itself(backend: Any, version_directory: Path) -> None:
    tensors = {"input": [tensor("X", dims=[-1])], "output": [tensor("Y", dims=[-1])]}
    instance = load(backend, version_directory, tiny_onnx.running_total(), **tensors)

    first, second = ask(instance, {"X": np.float32([1, 2])}, {"X": np.float32([3, 4])})

    assert first.arrays()["Y"].tolist() == [1, 3]
    assert second.arrays()["Y"].tolist() == [3, 7]


def test_a_scalar_model_is_served_as_one_element(backend: Any, version_directory: Path) -> None:
    instance = load(backend, version_directory, tiny_onnx.scalar_product())

    (response,) = ask(instance, {"X": np.float32([3])})

    assert response.arrays()["Y"].tolist() == [9]


def test_an_input_with_a_value_of_its_own_may_be_left_out(backend: Any, version_directory: Path) -> None:
    inputs = [tensor("X"), tensor("BIAS", optional=True)]
    instance = load(backend, version_directory, tiny_onnx.with_optional_bias(), input=inputs, output=[tensor("Y")])

    without, with_bias = ask(instance, {"X": np.float32([1, 2])}, {"X": np.float32([1, 2]), "BIAS": np.float32([0, 5])})

    assert without.arrays()["Y"].tolist() == [11, 12]
    assert with_bias.arrays()["Y"].tolist() == [1, 7]


def test_with_dynamic_batching_a_request_is_not_asked_whether_it_was_cancelled(backend: Any, version_directory: Path) -> None:
    instance = load(backend, version_directory, tiny_onnx.identity(TensorProto.FLOAT, ["batch", 1]))
    request = Request({"X": np.zeros((1, 1), np.float32)}, ("Y",))

    instance.execute([request])

    assert request.cancellation_checks == 0


def test_without_it_what_was_cancelled_is_not_run(backend: Any, version_directory: Path) -> None:
    instance = load(backend, version_directory, tiny_onnx.identity(TensorProto.FLOAT, [2]))

    (response,) = instance.execute([Request({"X": np.float32([1, 2])}, ("Y",), cancelled=True)])

    assert response.error.code == TritonError.CANCELLED


def test_a_complete_configuration_is_not_touched_and_the_file_not_opened(backend: Any) -> None:
    complete = config_json(input=[tensor("X")], output=[tensor("Y")])

    assert backend.auto_complete_config(AutoCompleteConfig(dict(complete))).as_dict() == complete


def test_a_configuration_that_does_not_fit_the_file_fails_the_load(backend: Any, version_directory: Path) -> None:
    with pytest.raises(ConfigError, match="unexpected output 'Z', the model's file has: Y"):
        load(backend, version_directory, tiny_onnx.identity(TensorProto.FLOAT, [2]), output=[tensor("Z")])


def test_another_filename_is_honoured(backend: Any, version_directory: Path) -> None:
    tiny_onnx.save(tiny_onnx.identity(TensorProto.FLOAT, ["batch", 1]), version_directory / "other.onnx")

    completed = backend.auto_complete_config(AutoCompleteConfig(config_json(default_model_filename="other.onnx"))).as_dict()

    assert completed["input"][0]["name"] == "X"
