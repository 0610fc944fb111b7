"""Small ONNX files, made here in milliseconds, one for each thing that a backend has to cope with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Shape = Sequence[int | str]


def identity(data_type: int, shape: Shape) -> onnx.ModelProto:
    """Y = X."""
    return _model(
        [helper.make_node("Identity", ["X"], ["Y"])],
        inputs=[helper.make_tensor_value_info("X", data_type, shape)],
        outputs=[helper.make_tensor_value_info("Y", data_type, shape)],
    )


def sum_with(constant: np.ndarray) -> onnx.ModelProto:
    """Y = X [batch, length] + the constant, FP32."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("X", ["batch", "length"]), ("Y", None)))
    return _model([helper.make_node("Add", ["X", "constant"], ["Y"])], [x], [y], {"constant": constant})


def sum_and_difference() -> onnx.ModelProto:
    """SUM = A + B and DIFFERENCE = A - B, FP32."""
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ("batch", 2)) for name in ("A", "B", "SUM", "DIFFERENCE")]
    nodes = [helper.make_node("Add", ["A", "B"], ["SUM"]), helper.make_node("Sub", ["A", "B"], ["DIFFERENCE"])]
    return _model(nodes, inputs=tensors[:2], outputs=tensors[2:])


def running_total() -> onnx.ModelProto:
    """Y [n] = the cumulative sum of X [n], FP32: what it answers depends on everything before."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in ("X", "Y"))
    return _model([helper.make_node("CumSum", ["X", "axis"], ["Y"])], [x], [y], {"axis": np.array(0)})


def bag_of_tokens(vocabulary: int = 50) -> onnx.ModelProto:
    """EMBEDDING [batch, dimensions] = the sum of the table's rows for INPUT_IDS where ATTENTION_MASK is 1: blind to padding."""
    table = np.arange(vocabulary * 3, dtype=np.float32).reshape(vocabulary, 3)
    nodes = [
        helper.make_node("Gather", ["table", "INPUT_IDS"], ["rows"]),
        helper.make_node("Cast", ["ATTENTION_MASK"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["weights"]),
        helper.make_node("Mul", ["rows", "weights"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "length"], ["EMBEDDING"], keepdims=0),
    ]
    constants = {"table": table, "last": np.array([-1]), "length": np.array([1])}
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"]) for name in ("INPUT_IDS", "ATTENTION_MASK")]
    return _model(nodes, inputs, [helper.make_tensor_value_info("EMBEDDING", TensorProto.FLOAT, ["batch", 3])], constants)


def with_optional_bias() -> onnx.ModelProto:
    """Y [2] = X [2] + BIAS, where BIAS is an input that is 10 when left out."""
    bias = helper.make_tensor_value_info("BIAS", TensorProto.FLOAT, [2])
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("X", "Y"))
    return _model([helper.make_node("Add", ["X", "BIAS"], ["Y"])], [x, bias], [y], {"BIAS": np.full(2, 10, np.float32)})


def scalar_product() -> onnx.ModelProto:
    """Y, a scalar = X, a scalar, squared."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, []) for name in ("X", "Y"))
    return _model([helper.make_node("Mul", ["X", "X"], ["Y"])], [x], [y])


def sequence_of_tensors() -> onnx.ModelProto:
    """An output that is no tensor."""
    x = helper.make_tensor_value_info("X", TensorProto.FLOAT, ["batch", 2])
    y = helper.make_tensor_sequence_value_info("Y", TensorProto.FLOAT, None)
    return _model([helper.make_node("SequenceConstruct", ["X"], ["Y"])], [x], [y])


def save(model: onnx.ModelProto, path: Path) -> Path:
    """Write it, with the folders that it needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return path


def _model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    constants: dict[str, np.ndarray] | None = None,
) -> onnx.ModelProto:
    initializers = [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()]
    graph = helper.make_graph(nodes, "tiny", inputs, outputs, initializers)
    # IR 8 and opset 17: what ONNX Runtime has read since 1.12.
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
