"""Sixteen text encoders of different sizes, for scenarios of more models than memory: token ids -> unit vectors.

The architecture is that of real small ones (embeddings, transformer layers, mean pooling); the weights are random, since nobody asks what
the vectors mean. Made in seconds and without downloads; the same ones every time.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

INPUT, OUTPUT = "INPUT_IDS", "EMBEDDING"
_OPSET = 20
"""The first with Gelu; LayerNormalization came with 17."""
_IR_VERSION = 10
_MAX_TOKENS = 128
_HEAD = 32
_FEED_FORWARD = 4

_SEED = 7
_MADE = ".made"

_CONFIG = """platform: "onnxruntime_onnx"
max_batch_size: 16
input [ {{ name: "INPUT_IDS" data_type: TYPE_INT64 dims: [ -1 ] }} ]
output [ {{ name: "EMBEDDING" data_type: TYPE_FP32 dims: [ {hidden} ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
parameters {{ key: "intra_op_thread_count" value: {{ string_value: "1" }} }}
dynamic_batching {{ }}
"""


@dataclass(frozen=True, slots=True)
class Encoder:
    """Text encoder of one size."""

    hidden: int
    layers: int
    vocabulary: int

    @property
    def name(self) -> str:
        return f"encoder_{self.hidden}x{self.layers}_{self.vocabulary}"

    @property
    def weights_bytes(self) -> int:
        """The file has a few kB more."""
        layer = (4 + 2 * _FEED_FORWARD) * self.hidden**2 + (9 + _FEED_FORWARD) * self.hidden
        return 4 * ((self.vocabulary + _MAX_TOKENS) * self.hidden + self.layers * layer)


ENCODERS = (
    Encoder(64, 1, 8_000),
    Encoder(64, 4, 8_000),
    Encoder(96, 2, 8_000),
    Encoder(96, 3, 16_000),
    Encoder(128, 2, 8_000),
    Encoder(128, 4, 16_000),
    Encoder(192, 1, 8_000),
    Encoder(192, 4, 16_000),
    Encoder(256, 1, 8_000),
    Encoder(256, 4, 8_000),
    Encoder(256, 2, 20_000),
    Encoder(384, 1, 12_000),
    Encoder(384, 3, 12_000),
    Encoder(384, 2, 24_000),
    Encoder(512, 2, 8_000),
    Encoder(512, 3, 10_000),
)
"""From 2 to 60 MB."""


def build(folder: Path, encoders: Sequence[Encoder] = ENCODERS) -> dict[str, int]:
    """Make those that are not there; the bytes of each one's file by its name, in the order of `encoders`."""
    for number, encoder in enumerate(encoders):
        if not (folder / encoder.name / _MADE).exists():
            _write(folder / encoder.name, encoder, np.random.default_rng([_SEED, number]))
    return {encoder.name: (folder / encoder.name / "1/model.onnx").stat().st_size for encoder in encoders}


def declare(made: Path, folder: Path, resident_bytes: Mapping[str, int]) -> None:
    """Put the same models into another folder, with what each takes in its configuration."""
    for name, size in resident_bytes.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "1").symlink_to(made / name / "1")
        declared = f'parameters {{ key: "tidegate_resident_bytes" value: {{ string_value: "{size}" }} }}\n'
        (folder / name / "config.pbtxt").write_text((made / name / "config.pbtxt").read_text() + declared)


def _write(folder: Path, encoder: Encoder, random: np.random.Generator) -> None:
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_text(_CONFIG.format(hidden=encoder.hidden))
    onnx.save(_model(encoder, random), str(folder / "1/model.onnx"))
    (folder / _MADE).touch()  # last: a build that was interrupted is done again


def _model(encoder: Encoder, random: np.random.Generator) -> onnx.ModelProto:
    graph = _Graph(random)
    hidden = graph.embed(encoder)
    for _ in range(encoder.layers):
        hidden = graph.layer(hidden, encoder.hidden)
    graph.pool(hidden)
    ids = helper.make_tensor_value_info(INPUT, TensorProto.INT64, ["batch", "tokens"])
    vectors = helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["batch", encoder.hidden])
    made = helper.make_graph(graph.nodes, encoder.name, [ids], [vectors], graph.constants)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)


class _Graph:
    """Builder of an ONNX graph, node by node; what its methods take and return are the names of values."""

    def __init__(self, random: np.random.Generator) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._random = random
        self._names = map("v{}".format, itertools.count())

    def embed(self, encoder: Encoder) -> str:
        tokens = self.node("Gather", self.weights(encoder.vocabulary, encoder.hidden), INPUT)
        length = self.node("Slice", self.node("Shape", INPUT), self.constant([1]), self.constant([2]))
        places = self.node("Slice", self.weights(_MAX_TOKENS, encoder.hidden), self.constant([0]), length, self.constant([0]))
        return self.node("Add", tokens, places)

    def layer(self, hidden: str, width: int) -> str:
        """Attention and feed-forward, each with its residual and norm."""
        hidden = self.norm(self.node("Add", hidden, self.linear(self.attention(hidden, width), width, width)), width)
        inner = self.node("Gelu", self.linear(hidden, width, _FEED_FORWARD * width))
        return self.norm(self.node("Add", hidden, self.linear(inner, _FEED_FORWARD * width, width)), width)

    def attention(self, hidden: str, width: int) -> str:
        query, key, value = (self.heads(self.linear(hidden, width, width), width, order) for order in _ORDERS)
        scores = self.node("Mul", self.node("MatMul", query, key), self.constant(np.float32(_HEAD**-0.5)))
        mixed = self.node("MatMul", self.node("Softmax", scores, axis=-1), value)
        return self.node("Reshape", self.node("Transpose", mixed, perm=[0, 2, 1, 3]), self.constant([0, 0, width]))

    def heads(self, values: str, width: int, order: Sequence[int]) -> str:
        return self.node("Transpose", self.node("Reshape", values, self.constant([0, 0, width // _HEAD, _HEAD])), perm=order)

    def linear(self, values: str, width_in: int, width_out: int) -> str:
        return self.node("Add", self.node("MatMul", values, self.weights(width_in, width_out)), self.weights(width_out))

    def norm(self, values: str, width: int) -> str:
        scale = self.constant(np.ones(width, np.float32))
        return self.node("LayerNormalization", values, scale, self.weights(width), axis=-1)

    def pool(self, hidden: str) -> None:
        mean = self.node("ReduceMean", hidden, self.constant([1]), keepdims=0)
        self.nodes.append(helper.make_node("LpNormalization", [mean], [OUTPUT], axis=-1, p=2))

    def weights(self, *shape: int) -> str:
        return self.constant(self._random.standard_normal(shape, dtype=np.float32) * np.float32(shape[-1] ** -0.5))

    def constant(self, value: NDArray[np.float32] | np.float32 | Sequence[int]) -> str:
        array = np.asarray(value, dtype=None if isinstance(value, (np.ndarray, np.float32)) else np.int64)
        self.constants.append(numpy_helper.from_array(array, name := next(self._names)))
        return name

    def node(self, operator: str, *inputs: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(operator, inputs, [name := next(self._names)], **attributes))
        return name


_ORDERS = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
"""Orders of the axes batch, token, head and value, for queries, keys (turned round for the product), values."""
