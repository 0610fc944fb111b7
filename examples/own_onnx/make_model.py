"""Write a tiny ONNX model, FAHRENHEIT = CELSIUS * 1.8 + 32, where yours would come from a training."""

from pathlib import Path

import onnx
from onnx import TensorProto, helper

PATH = Path(__file__).parent / "models/fahrenheit/1/model.onnx"

celsius = helper.make_tensor_value_info("CELSIUS", TensorProto.FLOAT, ["batch", 1])
fahrenheit = helper.make_tensor_value_info("FAHRENHEIT", TensorProto.FLOAT, ["batch", 1])
factor = helper.make_tensor("factor", TensorProto.FLOAT, [1], [1.8])
offset = helper.make_tensor("offset", TensorProto.FLOAT, [1], [32.0])
nodes = [helper.make_node("Mul", ["CELSIUS", "factor"], ["scaled"]), helper.make_node("Add", ["scaled", "offset"], ["FAHRENHEIT"])]
graph = helper.make_graph(nodes, "fahrenheit", [celsius], [fahrenheit], [factor, offset])

PATH.parent.mkdir(exist_ok=True)
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), PATH)
print(f"wrote {PATH.relative_to(Path(__file__).parent)}")
