"""What an ONNX file declares, and the native backend's rules for a configuration that must agree with it."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto

from python_backends.runtime.engines.session import open_session_to_describe
from python_backends.runtime.errors import ConfigError
from python_backends.runtime.signature import Signature, TensorSignature, check_signature, read_signature
from tests.unit.python_backends import tiny_onnx
from tests.unit.python_backends.configs import config, tensor

BATCHED = Signature(inputs=(TensorSignature("X", "TYPE_FP32", (-1, 2)),), outputs=(TensorSignature("Y", "TYPE_FP32", (-1, 2)),))
PLAIN = Signature(
    inputs=(TensorSignature("X", "TYPE_FP32", (2,)),),
    outputs=(TensorSignature("Y", "TYPE_FP32", (2,)), TensorSignature("Z", "TYPE_INT64", (1,))),
    initializers=(TensorSignature("BIAS", "TYPE_FP32", (2,)),),
)


def signature_of(model: onnx.ModelProto, tmp_path: Path) -> Signature:
    return read_signature(open_session_to_describe(tiny_onnx.save(model, tmp_path / "model.onnx"), config()))


@pytest.mark.parametrize(
    ("onnx_type", "data_type"),
    [
        (TensorProto.BOOL, "TYPE_BOOL"),
        (TensorProto.UINT8, "TYPE_UINT8"),
        (TensorProto.UINT16, "TYPE_UINT16"),
        (TensorProto.UINT32, "TYPE_UINT32"),
        (TensorProto.UINT64, "TYPE_UINT64"),
        (TensorProto.INT8, "TYPE_INT8"),
        (TensorProto.INT16, "TYPE_INT16"),
        (TensorProto.INT32, "TYPE_INT32"),
        (TensorProto.INT64, "TYPE_INT64"),
        (TensorProto.FLOAT16, "TYPE_FP16"),
        (TensorProto.FLOAT, "TYPE_FP32"),
        (TensorProto.DOUBLE, "TYPE_FP64"),
        (TensorProto.STRING, "TYPE_STRING"),
    ],
)
def test_every_shared_data_type_is_read(tmp_path: Path, onnx_type: int, data_type: str) -> None:
    read = signature_of(tiny_onnx.identity(onnx_type, ["batch", 3]), tmp_path)

    assert read == Signature((TensorSignature("X", data_type, (-1, 3)),), (TensorSignature("Y", data_type, (-1, 3)),))


def test_a_data_type_that_cannot_be_served_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"'X' of the ONNX file is a tensor\(bfloat16\), which cannot be served; supported are tensor\(bool\)"
    ):
        signature_of(tiny_onnx.identity(TensorProto.BFLOAT16, [1]), tmp_path)


def test_an_output_that_is_no_tensor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'Y' of the ONNX file is a seq\(tensor\(float\)\)"):
        signature_of(tiny_onnx.sequence_of_tensors(), tmp_path)


def test_inputs_with_a_value_of_their_own_are_told_apart(tmp_path: Path) -> None:
    read = signature_of(tiny_onnx.with_optional_bias(), tmp_path)

    assert [tensor.name for tensor in read.inputs] == ["X"]
    assert [tensor.name for tensor in read.initializers] == ["BIAS"]


@pytest.mark.parametrize(
    ("shapes", "batchable"),
    [
        pytest.param([(-1, 2), (-1,)], True, id="all-dynamic"),
        pytest.param([(-1, 2), (4, 2)], False, id="one-fixed"),
        pytest.param([(-1, 2), ()], False, id="a-scalar"),
    ],
)
def test_a_file_is_batchable_if_all_its_tensors_are(shapes: list[tuple[int, ...]], batchable: bool) -> None:
    first, second = (TensorSignature(f"T{index}", "TYPE_FP32", shape) for index, shape in enumerate(shapes))

    assert Signature((first,), (second,)).is_batchable is batchable
    assert Signature((second,), (first,)).is_batchable is batchable


def test_configurations_that_agree() -> None:
    check_signature(config(max_batch_size=8, input=[tensor("X")], output=[tensor("Y")]), BATCHED)
    check_signature(config(input=[tensor("X", dims=[-1, 2])], output=[tensor("Y", dims=[-1, 2])]), BATCHED)
    check_signature(config(input=[tensor("X")], output=[tensor("Z", "TYPE_INT64", [1])]), PLAIN)
    check_signature(config(input=[tensor("X"), tensor("BIAS", optional=True)], output=[tensor("Y")]), PLAIN)


def test_an_input_may_be_configured_narrower_than_the_file_but_an_output_may_not() -> None:
    wide = Signature((TensorSignature("X", "TYPE_FP32", (-1, -1)),), (TensorSignature("Y", "TYPE_FP32", (-1, -1)),))

    check_signature(config(max_batch_size=8, input=[tensor("X", dims=[3])], output=[tensor("Y", dims=[-1])]), wide)
    with pytest.raises(ConfigError, match=r"output 'Y': the configuration says the shape \[-1, 3\] .* the model's file has \[-1, -1\]"):
        check_signature(config(max_batch_size=8, input=[tensor("X", dims=[3])], output=[tensor("Y", dims=[3])]), wide)


def test_an_input_may_not_be_configured_wider_than_the_file() -> None:
    with pytest.raises(ConfigError, match=r"input 'X': the configuration says the shape \[-1, -1\] \(the first is the batch"):
        check_signature(config(max_batch_size=8, input=[tensor("X", dims=[-1])], output=[tensor("Y")]), BATCHED)


def test_scalars_are_configured_as_ones() -> None:
    scalar = Signature((TensorSignature("X", "TYPE_FP32", ()),), (TensorSignature("Y", "TYPE_FP32", ()),))

    check_signature(config(input=[tensor("X", dims=[1])], output=[tensor("Y", dims=[1, 1])]), scalar)
    with pytest.raises(ConfigError, match=r"input 'X': the configuration says the shape \[2\], the model's file has \[\]"):
        check_signature(config(input=[tensor("X", dims=[2])], output=[tensor("Y", dims=[1])]), scalar)


def test_control_inputs_of_a_sequence_batcher_count_as_configured() -> None:
    sequence = Signature((*BATCHED.inputs, TensorSignature("START", "TYPE_INT32", (-1, 1))), BATCHED.outputs)
    batching = {"control_input": [{"name": "START"}]}

    check_signature(config(max_batch_size=8, input=[tensor("X")], output=[tensor("Y")], sequence_batching=batching), sequence)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"input": [tensor("W")]}, "unexpected input 'W', the model's file has: BIAS, X", id="unknown-input"),
        pytest.param({"input": []}, r"the model's file also needs the input\(s\) X", id="missing-input"),
        pytest.param({"output": [tensor("W")]}, "unexpected output 'W', the model's file has: Y, Z", id="unknown-output"),
        pytest.param(
            {"input": [tensor("X", "TYPE_INT32")]},
            "input 'X': the configuration says TYPE_INT32, the model's file has TYPE_FP32",
            id="type",
        ),
        pytest.param(
            {"input": [tensor("X", dims=[3])]}, r"input 'X': the configuration says the shape \[3\], the model's file has \[2\]", id="dims"
        ),
        pytest.param({"input": [tensor("X", dims=[2, 1])]}, r"says the shape \[2, 1\], the model's file has \[2\]", id="rank"),
        pytest.param(
            {"max_batch_size": 4}, "input 'X': for the model to support batching the first dimension must be dynamic", id="no-batch"
        ),
        pytest.param(
            {"max_batch_size": 4, "input": [tensor("X", optional=True)]},
            "optional input 'X' is not supported for models that support batching",
            id="optional-and-batched",
        ),
    ],
)
def test_configurations_that_disagree_are_refused_with_both_sides(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=f"model 'm'.*{message}"):
        check_signature(config(**{"input": [tensor("X")], "output": [tensor("Y")], **changes}), PLAIN)
