"""Writes a BERT sentence encoder as an ONNX graph from its weights; equal weights give equal bytes.

Mean of the last hidden states over the attention mask, then L2 normalisation, as sentence-transformers does for models whose modules.json
says Transformer, Pooling (mean), Normalize. Weights are those of a checkpoint, by its names; a layer may have fewer heads and neurons than
the published configuration says (`prune.py`), and then its weights are narrower.

Two forms compute the same. One is in operators of the ONNX standard, for TensorRT and as the reference. The other has ONNX Runtime's own
(domain `com.microsoft`), the fastest on a CPU: one operator for the embeddings and one for attention, and a difference where a sum would
be fused into SkipLayerNormalization, which takes four times as long as an addition and a LayerNormalization (ONNX Runtime 1.31).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from python_backends.export.recipe import BuildError
from python_backends.runtime.execution import Array

INPUT_IDS, ATTENTION_MASK, EMBEDDING = "INPUT_IDS", "ATTENTION_MASK", "EMBEDDING"
MICROSOFT = "com.microsoft"

# The first with LayerNormalization as one operator; ONNX Runtime since 1.12 and TensorRT since 8.6 read it, and this version of the format.
OPSET, IR_VERSION = 17, 8

# In published checkpoints, but not part of what is computed here.
UNUSED_WEIGHTS = {"embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias"}

# What is added to the score of a masked position, as ONNX Runtime's own operator does: its exponential is 0 beside any other's.
MASKED = -1e4

Weights = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class BertShape:
    """Sizes of a BERT graph, from a published config.json, and the epsilon of its normalisations."""

    layers: int
    hidden_size: int
    head_size: int
    vocabulary: int
    positions: int
    epsilon: float

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> BertShape:
        """Read a configuration. Raises BuildError: this kind of BERT cannot be written as a graph here."""
        for key, known in (("hidden_act", "gelu"), ("position_embedding_type", "absolute")):
            if config.get(key, known) != known:
                raise BuildError(f"config.json says {key} {config[key]!r}, and only {known!r} can be written as a graph here")
        return cls(
            layers=config["num_hidden_layers"],
            hidden_size=config["hidden_size"],
            head_size=config["hidden_size"] // config["num_attention_heads"],
            vocabulary=config["vocab_size"],
            positions=config["max_position_embeddings"],
            epsilon=config["layer_norm_eps"],
        )


def layer_name(layer: int) -> str:
    """Return the common prefix of the names of a layer's weights."""
    return f"encoder.layer.{layer}"


def attended(layer: int) -> str:
    """Name the tensor [batch, length, heads * head size] that the projection after attention reads."""
    return f"{layer_name(layer)}.attended"


def activated(layer: int) -> str:
    """Name the tensor [batch, length, neurons] that the second feed-forward product reads."""
    return f"{layer_name(layer)}.activated"


def bert_graph(weights: Weights, shape: BertShape, *, fused: bool) -> bytes:
    """Write an ONNX file: inputs INPUT_IDS and ATTENTION_MASK INT64 [batch, length], output EMBEDDING FP32
    [batch, hidden size].

    A position whose mask is 0 has no influence. `fused` chooses ONNX Runtime's own operators.

    Raises:
        BuildError: The weights do not belong to that shape.
    """
    _require(weights, shape)
    graph = _Graph()
    form = _Fused(graph, weights, shape) if fused else _Standard(graph, weights, shape)
    hidden = form.embed()
    for layer in range(shape.layers):
        hidden = form.layer(layer, hidden)
    _pool(graph, hidden)
    return _serialized(graph, shape.hidden_size, fused=fused)


class _Graph:
    """Builder of an ONNX graph: nodes and constants in the order in which they were added."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []

    def constant(self, name: str, values: Array) -> str:
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def add(self, operator: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output


class _Form:
    """Base of both forms of the graph: linear layers, normalisations, and their order in a layer."""

    def __init__(self, graph: _Graph, weights: Weights, shape: BertShape) -> None:
        self._graph = graph
        self._weights = weights
        self._shape = shape

    def embed(self) -> str:
        raise NotImplementedError

    def _attention(self, layer: int, hidden: str) -> str:
        raise NotImplementedError

    def _gelu(self, x: str, output: str) -> str:
        raise NotImplementedError

    def _residual(self, skip: str, x: str, name: str) -> str:
        """Add the residual sum: `skip` + the linear layer `name` of `x`."""
        raise NotImplementedError

    def layer(self, layer: int, hidden: str) -> str:
        name = layer_name(layer)
        summed = self._residual(hidden, self._attention(layer, hidden), f"{name}.attention.output.dense")
        hidden = self._normalized(summed, f"{name}.attention.output.LayerNorm")
        inner = self._gelu(self._linear(hidden, f"{name}.intermediate.dense"), activated(layer))
        return self._normalized(self._residual(hidden, inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")

    def _constant(self, name: str, values: Array | None = None) -> str:
        return self._graph.constant(name, self._weights[name] if values is None else values)

    def _linear(self, x: str, name: str, *, sign: int = 1) -> str:
        weight = self._constant(f"{name}.weight", sign * self._weights[f"{name}.weight"].T)
        bias = self._constant(f"{name}.bias", sign * self._weights[f"{name}.bias"])
        product = self._graph.add("MatMul", [x, weight], f"{name}.product")
        return self._graph.add("Add", [product, bias], f"{name}.sum")

    def _normalized(self, x: str, name: str) -> str:
        parameters = [self._constant(f"{name}.{part}") for part in ("weight", "bias")]
        return self._graph.add("LayerNormalization", [x, *parameters], name, axis=-1, epsilon=self._shape.epsilon)

    def _positions(self) -> Array:
        # One segment always, so its embedding is part of every position's.
        segments = self._weights["embeddings.token_type_embeddings.weight"]
        positions: Array = self._weights["embeddings.position_embeddings.weight"] + segments[0]
        return positions


class _Standard(_Form):
    """Form of the graph in operators of the ONNX standard."""

    def embed(self) -> str:
        add, constant = self._graph.add, self._constant
        words = add("Gather", [constant("embeddings.word_embeddings.weight"), INPUT_IDS], "embeddings.words")
        length = add("Shape", [INPUT_IDS], "embeddings.length", start=1, end=2)
        zero = constant("embeddings.zero", np.array([0], np.int64))
        table = constant("embeddings.position_embeddings.weight", self._positions())
        positions = add("Slice", [table, zero, length, zero], "embeddings.positions")
        self._add_mask()
        return self._normalized(add("Add", [words, positions], "embeddings.sum"), "embeddings.LayerNorm")

    def _add_mask(self) -> None:
        """Add `mask.scores` [batch, 1, 1, length], the bias that attention adds to its scores."""
        add, constant = self._graph.add, self._constant
        axes = constant("mask.axes", np.array([1, 2], np.int64))
        given = add("Cast", [add("Unsqueeze", [ATTENTION_MASK, axes], "mask.unsqueezed")], "mask.given", to=TensorProto.FLOAT)
        missing = add("Sub", [constant("mask.one", np.array(1, np.float32)), given], "mask.missing")
        add("Mul", [missing, constant("mask.masked", np.array(MASKED, np.float32))], "mask.scores")
        constant("attention.scale", np.array(1 / math.sqrt(self._shape.head_size), np.float32))
        constant("attention.split", np.array([0, 0, -1, self._shape.head_size], np.int64))
        constant("attention.join", np.array([0, 0, -1], np.int64))

    def _attention(self, layer: int, hidden: str) -> str:
        name, add = f"{layer_name(layer)}.attention", self._graph.add
        query = self._heads(hidden, f"{name}.self.query", perm=[0, 2, 1, 3])
        key = self._heads(hidden, f"{name}.self.key", perm=[0, 2, 3, 1])
        value = self._heads(hidden, f"{name}.self.value", perm=[0, 2, 1, 3])
        scores = add("Mul", [add("MatMul", [query, key], f"{name}.products"), "attention.scale"], f"{name}.scaled")
        weights = add("Softmax", [add("Add", [scores, "mask.scores"], f"{name}.scores")], f"{name}.weights", axis=-1)
        mixed = add("Transpose", [add("MatMul", [weights, value], f"{name}.mixed")], f"{name}.transposed", perm=[0, 2, 1, 3])
        return add("Reshape", [mixed, "attention.join"], attended(layer))

    def _heads(self, hidden: str, name: str, *, perm: list[int]) -> str:
        split = self._graph.add("Reshape", [self._linear(hidden, name), "attention.split"], f"{name}.split")
        return self._graph.add("Transpose", [split], f"{name}.heads", perm=perm)

    def _gelu(self, x: str, output: str) -> str:
        """Add GELU: x / 2 * (1 + erf(x / sqrt(2)))."""
        add, constant = self._graph.add, self._constant
        parts = {"root": math.sqrt(2), "half": 0.5, "one": 1.0}
        root, half, one = (constant(f"{output}.{part}", np.array(value, np.float32)) for part, value in parts.items())
        erf = add("Erf", [add("Div", [x, root], f"{output}.divided")], f"{output}.erf")
        share = add("Mul", [add("Add", [erf, one], f"{output}.raised"), half], f"{output}.share")
        return add("Mul", [x, share], output)

    def _residual(self, skip: str, x: str, name: str) -> str:
        return self._graph.add("Add", [skip, self._linear(x, name)], f"{name}.residual")


class _Fused(_Form):
    """Form of the graph in ONNX Runtime's own fused operators."""

    def embed(self) -> str:
        add, constant = self._graph.add, self._constant
        ids, _ = (add("Cast", [name], f"{name}.int32", to=TensorProto.INT32) for name in (INPUT_IDS, ATTENTION_MASK))
        tables = [
            constant("embeddings.word_embeddings.weight"),
            constant("embeddings.position_embeddings.weight", self._positions()),
            "",
            *(constant(f"embeddings.LayerNorm.{part}") for part in ("weight", "bias")),
        ]
        node = helper.make_node(
            "EmbedLayerNormalization",
            [ids, "", *tables],
            ["embeddings.LayerNorm", "embeddings.unused"],
            domain=MICROSOFT,
            epsilon=self._shape.epsilon,
        )
        self._graph.nodes.append(node)
        return "embeddings.LayerNorm"

    def _attention(self, layer: int, hidden: str) -> str:
        name, parts = f"{layer_name(layer)}.attention.self", ("query", "key", "value")
        matrices = [self._weights[f"{name}.{part}.weight"].T for part in parts]
        weight = self._constant(f"{name}.weight", np.concatenate(matrices, axis=1))
        bias = self._constant(f"{name}.bias", np.concatenate([self._weights[f"{name}.{part}.bias"] for part in parts]))
        heads = matrices[0].shape[1] // self._shape.head_size
        inputs = [hidden, weight, bias, f"{ATTENTION_MASK}.int32"]
        return self._graph.add("Attention", inputs, attended(layer), domain=MICROSOFT, num_heads=heads)

    def _gelu(self, x: str, output: str) -> str:
        return self._graph.add("Gelu", [x], output, domain=MICROSOFT)

    def _residual(self, skip: str, x: str, name: str) -> str:
        return self._graph.add("Sub", [skip, self._linear(x, name, sign=-1)], f"{name}.residual")


def _pool(graph: _Graph, hidden: str) -> None:
    axis = graph.constant("pooling.axis", np.array([1], np.int64))
    # 1e-12 guards against an empty mask, as PyTorch's `normalize` does.
    least = graph.constant("pooling.least", np.array(1e-12, np.float32))
    mask = graph.add("Cast", [graph.add("Unsqueeze", [ATTENTION_MASK, axis], "pooling.row")], "pooling.mask", to=TensorProto.FLOAT)
    # The sum points where the mean does, and the length is lost to normalisation.
    total = graph.add("Squeeze", [graph.add("MatMul", [mask, hidden], "pooling.sum"), axis], "pooling.total")
    norm = graph.add("ReduceL2", [total], "pooling.norm", axes=[1], keepdims=1)
    graph.add("Div", [total, graph.add("Clip", [norm, least], "pooling.divisor")], EMBEDDING)


def _serialized(graph: _Graph, hidden_size: int, *, fused: bool) -> bytes:
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"]) for name in (INPUT_IDS, ATTENTION_MASK)]
    output = helper.make_tensor_value_info(EMBEDDING, TensorProto.FLOAT, ["batch", hidden_size])
    opsets = [helper.make_opsetid("", OPSET), *([helper.make_opsetid(MICROSOFT, 1)] if fused else [])]
    proto: ModelProto = helper.make_model(
        helper.make_graph(graph.nodes, "sentence_encoder", inputs, [output], graph.constants),
        opset_imports=opsets,
        ir_version=IR_VERSION,
        producer_name="tidegate",
    )
    return bytes(proto.SerializeToString(deterministic=True))


def _require(weights: Weights, shape: BertShape) -> None:
    expected = dict(_expected(shape))
    missing = sorted(expected.keys() - weights.keys())
    unexpected = sorted(weights.keys() - expected.keys() - UNUSED_WEIGHTS)
    if missing or unexpected:
        raise BuildError(f"the weights do not fit the model: missing {missing}, unexpected {unexpected}")
    for name, sizes in expected.items():
        found = weights[name].shape
        if len(found) != len(sizes) or any(size not in (None, actual) for size, actual in zip(sizes, found, strict=True)):
            wanted = [size or "any" for size in sizes]
            raise BuildError(f"the weights do not fit the model: {name} is {[*found]} instead of {wanted}")


def _expected(shape: BertShape) -> Iterator[tuple[str, tuple[int | None, ...]]]:
    """Yield every weight's name and sizes; None where pruning may have left fewer."""
    hidden = shape.hidden_size
    yield from ((f"{name}.{part}", (hidden,)) for name in _normalizations(shape) for part in ("weight", "bias"))
    for name, rows in (("word", shape.vocabulary), ("position", shape.positions), ("token_type", None)):
        yield f"embeddings.{name}_embeddings.weight", (rows, hidden)
    for layer in range(shape.layers):
        name = layer_name(layer)
        for narrowing in (*(f"attention.self.{part}" for part in ("query", "key", "value")), "intermediate.dense"):
            yield f"{name}.{narrowing}.weight", (None, hidden)
            yield f"{name}.{narrowing}.bias", (None,)
        for widening in ("attention.output.dense", "output.dense"):
            yield f"{name}.{widening}.weight", (hidden, None)
            yield f"{name}.{widening}.bias", (hidden,)


def _normalizations(shape: BertShape) -> list[str]:
    layers = [layer_name(layer) for layer in range(shape.layers)]
    return ["embeddings.LayerNorm", *(f"{name}.{part}.LayerNorm" for name in layers for part in ("attention.output", "output"))]
