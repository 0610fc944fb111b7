"""Write the ensemble's ONNX model, and the words it knows. Its weights are by hand, where yours would be trained."""

from pathlib import Path

import onnx
from onnx import TensorProto, helper

MODELS = Path(__file__).parent / "models"
WEIGHTS = {"good": 2.0, "great": 3.0, "love": 3.0, "fine": 1.0, "bad": -2.0, "awful": -3.0, "slow": -1.0, "broken": -3.0}

counts = helper.make_tensor_value_info("COUNTS", TensorProto.FLOAT, ["batch", len(WEIGHTS)])
probability = helper.make_tensor_value_info("PROBABILITY", TensorProto.FLOAT, ["batch", 1])
weights = helper.make_tensor("weights", TensorProto.FLOAT, [len(WEIGHTS), 1], [*WEIGHTS.values()])
nodes = [helper.make_node("MatMul", ["COUNTS", "weights"], ["score"]), helper.make_node("Sigmoid", ["score"], ["PROBABILITY"])]
graph = helper.make_graph(nodes, "review_score", [counts], [probability], [weights])

(MODELS / "review_words/1/vocabulary.txt").write_text("\n".join(WEIGHTS))
(MODELS / "review_score/1").mkdir(exist_ok=True)
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), MODELS / "review_score/1/model.onnx")
print(f"wrote a model of {len(WEIGHTS)} words")
