"""Cuts a graph into parts whose weights fit into a budget. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from python_backends.runtime.errors import ConfigError
from python_backends.runtime.streaming.onnx_graph import Node, OnnxGraph, Weight
from python_backends.runtime.streaming.wire import encode

MIB = 1 << 20
ALIGNMENT = 64

# Operators that look rows of a table up -> the positions of the table and of the row numbers among their inputs.
LOOKUPS: Mapping[str, tuple[int, int]] = {"Gather": (0, 1), "EmbedLayerNormalization": (2, 0)}

_LAYER_PIECES = 4
"""A buffer is this part of the budget, and there are two: what is not streamed stays, and larger pieces wait longer for the first."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """Rows of a table that a part is given instead of the whole: `ids_input` numbers the rows of `rows_input`."""

    table: Weight
    ids: str
    ids_input: str
    rows_input: str


@dataclass(slots=True)
class Part:
    """Nodes that run together, and what they need."""

    stays: bool
    """Whether its weights stay in memory."""
    nodes: list[bytes] = field(default_factory=list)
    weights: dict[str, Weight] = field(default_factory=dict)
    constants: dict[str, bytes] = field(default_factory=dict)
    lookups: list[Lookup] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    done_with: list[str] = field(default_factory=list)
    """Tensors that no later part reads."""

    @property
    def weight_bytes(self) -> int:
        return sum(aligned(weight) for weight in self.weights.values())


@dataclass(frozen=True, slots=True)
class Plan:
    """Parts in their order; two buffers of `buffer_bytes` hold in turn the weights of those that do not stay."""

    parts: Sequence[Part]
    buffer_bytes: int
    held_bytes: int
    """Bytes of weights in memory at most: constants, what stays, and both buffers."""


def aligned(weight: Weight) -> int:
    """Return a weight's bytes in a buffer, where each begins at a multiple of `ALIGNMENT`."""
    return -(-weight.size // ALIGNMENT) * ALIGNMENT


def make_plan(graph: OnnxGraph, budget_bytes: int, model: str) -> Plan:
    """Cut a graph, in the order of its nodes, so that no more than `budget_bytes` of weights are in memory at a time.

    Raises:
        ConfigError: The budget is too small for the largest operator, or the graph is not in order.
    """
    constant_bytes = sum(map(len, graph.constants.values()))
    needs = [sum(aligned(weight) for weight in _weights(node, graph).values()) for node in graph.nodes]
    all_bytes = sum(aligned(weight) for weight in {name: w for node in graph.nodes for name, w in _weights(node, graph).items()}.values())
    room = budget_bytes - constant_bytes
    if room >= all_bytes:
        buffer_bytes, staying = 0, room
    elif (least := 2 * max(needs)) > room:
        mib = math.ceil((min(least, all_bytes) + constant_bytes) / MIB)
        raise ConfigError(
            f"model '{model}': its weights cannot be streamed in {budget_bytes // MIB} MiB: parameter 'weight_memory_mb' must be at least "
            f"{mib}, twice its largest operator and what is not streamed, so that the next is read while one computes"
        )
    else:
        buffer_bytes = max(max(needs), room // _LAYER_PIECES)
        staying = room - 2 * buffer_bytes
    parts = _cut(graph, needs, staying, buffer_bytes)
    _connect(parts, graph, model)
    held = constant_bytes + sum(part.weight_bytes for part in parts if part.stays) + 2 * buffer_bytes
    return Plan(parts, buffer_bytes, held)


def _cut(graph: OnnxGraph, needs: Sequence[int], staying: int, buffer_bytes: int) -> list[Part]:
    parts = [Part(stays=True)]
    room = staying
    for node, need in zip(graph.nodes, needs, strict=True):
        part = parts[-1]
        # A weight that the part has already counts twice, which errs on the safe side.
        if need > room:
            part = _next(parts, stays=False)
            room = buffer_bytes
        lookup = _lookup(node, graph)
        if lookup is not None and lookup.ids in part.made:
            part = _next(parts, stays=part.stays)
        room -= need
        _add(part, node, lookup, graph)
    return parts


def _next(parts: list[Part], *, stays: bool) -> Part:
    if parts[-1].nodes:
        parts.append(Part(stays))
    else:
        parts[-1] = Part(stays)
    return parts[-1]


def _add(part: Part, node: Node, lookup: Lookup | None, graph: OnnxGraph) -> None:
    part.weights |= _weights(node, graph)
    part.constants |= {name: graph.constants[name] for name in node.inputs if name in graph.constants}
    part.inputs += [name for name in node.inputs if name and name not in graph.constants and name not in graph.weights]
    part.made += [name for name in node.outputs if name]
    if lookup is None:
        part.nodes.append(node.message)
        return
    part.lookups.append(lookup)
    table, ids = LOOKUPS[node.operator]
    part.nodes.append(node.renamed({table: lookup.rows_input, ids: lookup.ids_input}))


def _connect(parts: Sequence[Part], graph: OnnxGraph, model: str) -> None:
    """Say what passes from part to part."""
    known = set(graph.inputs)
    for part in parts:
        part.inputs = [name for name in dict.fromkeys(part.inputs) if name not in part.made]
        if missing := [name for name in part.inputs if name not in known]:
            raise ConfigError(f"model '{model}': tensor '{missing[0]}' is read before it is computed")
        known |= set(part.made)
    if odd := [name for name in graph.outputs if name not in known or name in graph.inputs]:
        raise ConfigError(f"model '{model}': its weights cannot be streamed, no operator computes the output '{odd[0]}'")
    wanted = set(graph.outputs)
    for part in reversed(parts):
        part.outputs = [name for name in part.made if name in wanted]
        part.done_with = [name for name in part.inputs if name not in wanted]
        wanted |= set(part.inputs)
    parts[0].inputs += [name for name in graph.inputs if name not in wanted]  # what no operator reads is an input all the same
    for part in parts:
        # Row numbers go by the lookup's own input, unless another operator of the part reads them, too.
        looked_up = {lookup.ids for lookup in part.lookups}
        part.inputs = [name for name in part.inputs if name not in looked_up or _reads(part, name, graph)]


def _reads(part: Part, name: str, graph: OnnxGraph) -> bool:
    """Whether an operator of the part reads a tensor otherwise than as row numbers of a lookup."""
    ours = set(part.made)
    for node in graph.nodes:
        if ours.isdisjoint(node.outputs):
            continue
        position = LOOKUPS[node.operator][1] if _lookup(node, graph) else -1
        if any(each == name and index != position for index, each in enumerate(node.inputs)):
            return True
    return False


def part_model(part: Part, graph: OnnxGraph, given: Mapping[str, bytes]) -> bytes:
    """Return a part as an ONNX file; `given` are the messages that describe its inputs, by name."""
    inputs = [given[name] for name in part.inputs]
    inputs += [value_info(name, weight.data_type, weight.shape) for name, weight in part.weights.items()]
    for lookup in part.lookups:
        inputs += [given[lookup.ids_input], value_info(lookup.rows_input, lookup.table.data_type, (None, *lookup.table.shape[1:]))]
    outputs = [graph.outputs.get(name) or encode((1, name)) for name in part.outputs]
    message = encode(
        *((1, node) for node in part.nodes),
        (2, "part"),
        *((5, constant) for constant in part.constants.values()),
        *((11, info) for info in inputs),
        *((12, info) for info in outputs),
    )
    return graph.head + encode((7, message))


def value_info(name: str, data_type: int, shape: Sequence[int | str | None] | None) -> bytes:
    """Return a ValueInfoProto: a dimension is a size, a symbol, or None where nothing is known of it."""
    tensor: list[tuple[int, int | bytes | str]] = [(1, data_type)]
    if shape is not None:
        dims = (b"" if dim is None else encode((1, dim) if isinstance(dim, int) else (2, dim)) for dim in shape)
        tensor.append((2, encode(*((1, dim) for dim in dims))))
    return encode((1, name), (2, encode((1, encode(*tensor)))))


def _lookup(node: Node, graph: OnnxGraph) -> Lookup | None:
    if node.operator not in LOOKUPS or (node.operator == "Gather" and node.axis != 0):
        return None
    at, ids_at = LOOKUPS[node.operator]
    if len(node.inputs) <= max(at, ids_at) or (table := graph.weights.get(node.inputs[at])) is None or len(table.shape) < 2:
        return None
    ids = node.inputs[ids_at]
    if ids in graph.constants or ids in graph.weights:
        return None
    made = next(name for name in node.outputs if name)
    return Lookup(table, ids, f"{made}/tidegate_ids", f"{made}/tidegate_rows")


def _weights(node: Node, graph: OnnxGraph) -> dict[str, Weight]:
    """Return the weights that must be in memory while a node runs."""
    lookup = _lookup(node, graph)
    table = None if lookup is None else LOOKUPS[node.operator][0]
    return {name: graph.weights[name] for index, name in enumerate(node.inputs) if name in graph.weights and index != table}
