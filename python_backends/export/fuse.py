"""A BERT's ONNX graph in the operators that ONNX Runtime computes fastest on a CPU.

Attention and the sum of the embeddings become one operator each, of the domain `com.microsoft`: ONNX Runtime alone can read the result,
TensorRT and others need the graph as it was exported.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx
from onnx import GraphProto, NodeProto, helper, numpy_helper

from python_backends.export.recipe import BuildError

SOURCE = Path(__file__)

MICROSOFT = "com.microsoft"


def fuse_bert(model: bytes, *, heads: int, hidden_size: int) -> bytes:
    """The same function with fewer operators, for an encoder that was exported with eager attention.

    The sizes are those of the model as published; a layer that was left fewer heads is recognised.

    Raises:
        BuildError: No attention could be fused: the graph is not of the kind that is known here.
    """
    # Imported here: it takes a second.
    from onnxruntime.transformers.fusion_options import FusionOptions
    from onnxruntime.transformers.optimizer import optimize_by_fusion

    options = FusionOptions("bert")
    options.use_raw_attention_mask(True)
    # ONNX Runtime 1.31 takes four times as long for one SkipLayerNormalization as for an addition and a LayerNormalization.
    options.enable_skip_layer_norm = False
    # Left to the runtime, which fuses them when it loads the graph; `quantize` has a better place for the bias.
    options.enable_bias_gelu = False
    proto = onnx.load_from_string(model)
    fused = optimize_by_fusion(proto, model_type="bert", num_heads=heads, hidden_size=hidden_size, optimization_options=options).model
    if not any(node.op_type == "Attention" for node in fused.graph.node):
        raise BuildError("no attention could be fused: the graph is not that of a BERT exported with eager attention")
    _count_heads(fused.graph, hidden_size // heads)
    _subtract_residuals(fused.graph)
    if not any(entry.domain == MICROSOFT for entry in fused.opset_import):
        fused.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    return bytes(fused.SerializeToString())


def _count_heads(graph: GraphProto, head_size: int) -> None:
    """Give each Attention the heads that its weights have: the fusion assumes the published number where it cannot read one off."""
    widths = {initializer.name: initializer.dims[-1] for initializer in graph.initializer}
    for node in graph.node:
        if node.op_type == "Attention":
            heads = next(attribute for attribute in node.attribute if attribute.name == "num_heads")
            # Queries, keys and values lie side by side.
            heads.i = widths[node.input[1]] // (3 * head_size)


def _subtract_residuals(graph: GraphProto) -> None:
    """Normalise `skip - negated linear` instead of `skip + linear`: loading would fuse the addition after all."""
    producers = {output: node for node in graph.node for output in node.output}
    uses = Counter(name for node in graph.node for name in node.input)
    # One that two layers share cannot be negated for one of them.
    constants = {initializer.name for initializer in graph.initializer if uses[initializer.name] == 1}
    for normalization in graph.node:
        addition = producers.get(normalization.input[0]) if normalization.op_type == "LayerNormalization" else None
        if addition is None or addition.op_type != "Add":
            continue
        for linear, skip in (addition.input, addition.input[::-1]):
            if parameters := _parameters(producers.get(linear), producers, constants):
                _negate(graph, parameters)
                addition.op_type, addition.input[:] = "Sub", [skip, linear]
                break


def _parameters(bias_addition: NodeProto | None, producers: dict[str, NodeProto], constants: set[str]) -> set[str]:
    """The weight and the bias of a linear layer, given its last node; nothing where it is none."""
    if bias_addition is None or bias_addition.op_type != "Add":
        return set()
    products = [producers[name] for name in bias_addition.input if name in producers and producers[name].op_type == "MatMul"]
    names = {*bias_addition.input, *(name for product in products for name in product.input)} & constants
    return names if len(names) == 2 else set()


def _negate(graph: GraphProto, names: set[str]) -> None:
    for initializer in graph.initializer:
        if initializer.name in names:
            initializer.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(initializer), initializer.name))
