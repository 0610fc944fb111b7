"""INT8 quantisation of a fused graph from `bert_graph.py`: weights per output channel, activations over ranges
fixed by calibration.

Fixed ranges, unlike those of dynamic quantisation, make a text's embedding independent of the texts beside it in a batch. A few channels
have most of the range, so a layer's input is first divided by a factor per channel, which its weights are multiplied by (SmoothQuant, Xiao
et al. 2023). That costs no time where the factors fit into the layer before, and is otherwise done where the layer is too inexact without.

The result uses operators of `com.microsoft` (QAttention, MatMulIntegerToFloat): ONNX Runtime alone can read it, on a CPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, helper, numpy_helper

from python_backends.export.encoders.bert_graph import MICROSOFT
from python_backends.export.recipe import BuildError
from python_backends.export.variants.observe import observed
from python_backends.runtime.execution import Array

# UINT8 for activations and INT8 for weights is what the CPUs' dot products take; -128 is left out to keep the weights symmetric.
ACTIVATION_STEPS = 255
WEIGHT_STEPS = 127


@dataclass(frozen=True, slots=True)
class Linear:
    """Linear layer of the graph, `input @ weight + bias`: the first step of an Attention, or a MatMul and an
    Add."""

    node: NodeProto
    input: str
    output: str
    weight: Array
    bias: Array


@dataclass(frozen=True, slots=True)
class IntegerLinear:
    """Integer form of a linear layer: `input / smoothing`, in steps of `scale` around `zero_point`, times INT8
    `weight`, times `weight_scales`.

    `error` is the mean square of the remaining difference as a part of the output's variance; `bias_error` is
    the part that the bias can absorb.
    """

    smoothing: Array
    scale: float
    zero_point: int
    weight: Array
    weight_scales: Array
    error: float
    bias_error: Array


def quantize(
    model: bytes,
    calibration: Sequence[Sequence[int]],
    *,
    max_tokens: int = 2048,
    strengths: Sequence[float] = (0.3, 0.5, 0.7),
    clippings: Sequence[float] = (1.0, 0.85, 0.7),
    tolerance: float = 5e-4,
) -> bytes:
    """Return the graph with INT8 products, calibrated on the token ids of texts.

    A sample of `max_tokens` tokens decides. For each layer the best of `strengths` (of smoothing: 0 leaves all range to the activations, 1
    to the weights) and `clippings` (parts of the observed range) is taken; a multiplication is spent on smoothing where a layer's relative
    error would be above `tolerance` without.

    Raises:
        BuildError: The graph has no layer to quantise: it is not a fused one.
    """
    proto = onnx.load_from_string(model)
    layers = _linear_layers(proto.graph)
    if not layers:
        raise BuildError("the graph has no linear layer that is known here: it is not one that was fused")
    inputs = observed(model, {layer.input for layer in layers.values()}, calibration, max_tokens=max_tokens)
    nodes: dict[str, list[NodeProto]] = {}
    # Last first, for a projection's smoothing goes into the attention before it.
    for output in reversed(list(layers)):
        layer = layers[output]
        x, attention = inputs[layer.input], layers.get(layer.input)
        integer = fit(x, layer.weight, [np.ones_like(x[0])], clippings)
        if attention or integer.error > tolerance:
            integer = fit(x, layer.weight, smoothings(x, layer.weight, strengths), clippings)
        if attention:
            layers[layer.input] = _smoothed(attention, integer.smoothing)
        nodes[output] = list(_nodes(proto.graph, layer, integer, smoothed=attention is not None))
    _replace(proto.graph, nodes)
    return bytes(proto.SerializeToString())


def smoothings(x: Array, weight: Array, strengths: Iterable[float]) -> Iterator[Array]:
    """Yield smoothing factors per channel, with geometric mean 1, for activations [tokens, channels] and their
    weight [channels, outputs]."""
    # A channel that is always 0 needs some factor, too.
    activation, row = (np.maximum(np.abs(values).max(axis=axis), 1e-5) for values, axis in ((x, 0), (weight, 1)))
    for strength in strengths:
        factors = activation**strength / row ** (1 - strength)
        yield np.asarray(factors / np.exp(np.log(factors).mean()), np.float32)


def fit(x: Array, weight: Array, factors: Iterable[Array], clippings: Sequence[float]) -> IntegerLinear:
    """Return the integer form of `x @ weight` with the least error over all `factors` and `clippings`."""
    exact = x @ weight
    return min((_integer(x, weight, exact, *choice) for choice in product(factors, clippings)), key=lambda integer: integer.error)


def _integer(x: Array, weight: Array, exact: Array, smoothing: Array, clipping: float) -> IntegerLinear:
    smooth, scaled = x / smoothing, weight * smoothing[:, None]
    # A column of zeros has no range of its own.
    weight_scales = np.maximum(np.abs(scaled).max(axis=0), 1e-12) / WEIGHT_STEPS
    integers = np.rint(scaled / weight_scales)
    low, high = min(float(smooth.min()), 0.0) * clipping, max(float(smooth.max()), 1e-12) * clipping
    scale = (high - low) / ACTIVATION_STEPS
    zero_point = round(-low / scale)
    rounded = np.clip(np.rint(smooth / scale) + zero_point, 0, ACTIVATION_STEPS) - zero_point
    difference = rounded.astype(np.float32) @ integers.astype(np.float32) * (scale * weight_scales) - exact
    bias_error = difference.mean(axis=0)
    error = float(np.square(difference - bias_error).mean() / max(float(exact.var()), 1e-12))
    return IntegerLinear(smoothing, scale, zero_point, integers.astype(np.int8), weight_scales.astype(np.float32), error, bias_error)


def _linear_layers(graph: GraphProto) -> dict[str, Linear]:
    """Return the linear layers by the output of their product, in the graph's order."""
    constants = {initializer.name: initializer for initializer in graph.initializer}
    consumers = {name: node for node in graph.node for name in node.input}
    layers = {}
    for node in graph.node:
        if node.op_type not in ("Attention", "MatMul") or node.input[1] not in constants:
            continue
        last = node if node.op_type == "Attention" else consumers[node.output[0]]
        bias = node.input[2] if last is node else next(name for name in last.input if name != node.output[0])
        weight, bias_values = (numpy_helper.to_array(constants[name]) for name in (node.input[1], bias))
        layers[node.output[0]] = Linear(node, node.input[0], last.output[0], weight, bias_values)
    return layers


def _smoothed(attention: Linear, smoothing: Array) -> Linear:
    """Divide the values by `smoothing`, which passes through attention's weighted sums; queries and keys stay."""
    factors = np.ones_like(attention.bias)
    factors[-len(smoothing) :] = smoothing
    return replace(attention, weight=attention.weight / factors, bias=attention.bias / factors)


def _nodes(graph: GraphProto, layer: Linear, integer: IntegerLinear, *, smoothed: bool) -> Iterator[NodeProto]:
    prefix = layer.output

    def constant(name: str, values: Array) -> str:
        graph.initializer.append(numpy_helper.from_array(values, f"{prefix}.{name}"))
        return f"{prefix}.{name}"

    x = layer.input
    if not smoothed and (integer.smoothing != 1).any():
        yield helper.make_node("Mul", [x, constant("smoothing", 1 / integer.smoothing)], [x := f"{prefix}.smooth"])
    scale, zero_point = (
        constant("scale", np.array(integer.scale, np.float32)),
        constant("zero_point", np.array(integer.zero_point, np.uint8)),
    )
    yield helper.make_node("QuantizeLinear", [x, scale, zero_point], [quantized := f"{prefix}.quantized"])
    weight, weight_scales = constant("weight", integer.weight), constant("weight_scales", integer.weight_scales)
    bias = constant("bias", np.asarray(layer.bias - integer.bias_error, np.float32))
    if layer.node.op_type == "MatMul":
        inputs = [quantized, weight, scale, weight_scales, zero_point, "", bias]
        yield helper.make_node("MatMulIntegerToFloat", inputs, [layer.output], domain=MICROSOFT)
    else:
        weight_zero_points = constant("weight_zero_points", np.zeros_like(integer.weight[0]))
        inputs = [quantized, weight, bias, scale, weight_scales, layer.node.input[3], zero_point, weight_zero_points]
        heads = next(attribute.i for attribute in layer.node.attribute if attribute.name == "num_heads")
        yield helper.make_node("QAttention", inputs, [layer.output], domain=MICROSOFT, num_heads=heads)


def _replace(graph: GraphProto, replacements: Mapping[str, list[NodeProto]]) -> None:
    """Replace the nodes with these outputs, and drop nodes that are not read any more."""
    made = {node.output[0] for nodes in replacements.values() for node in nodes}
    nodes = [new for node in graph.node for new in replacements.get(node.output[0], [] if node.output[0] in made else [node])]
    del graph.node[:]
    graph.node.extend(nodes)
    read = {name for node in nodes for name in node.input}
    kept = [initializer for initializer in graph.initializer if initializer.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)
