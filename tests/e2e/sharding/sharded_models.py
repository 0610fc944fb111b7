"""A repository with sharded models: an encoder in two halves, and a pair of small parts, with a Triton ensemble of the same parts."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnx
from onnx.utils import extract_model

from tests.e2e.forks import PROJECT

ENCODER = PROJECT / "model_repository/text_encoder/1/fp32/model.onnx"
CUT = "encoder.layer.2.output.LayerNorm"
"""The tensor at which the encoder is cut: what its third layer of six gives."""

_MIB = 'parameters { key: "tidegate_resident_bytes" value { string_value: "%dMiB" } }\n'
_SHARDED = 'parameters { key: "tidegate_sharded" value { string_value: "true" } }\n'
_KEPT = """
parameters { key: "tidegate_min_replicas" value { string_value: "2" } }
parameters { key: "tidegate_repeatable" value { string_value: "true" } }
"""
_IDS = '{ name: "INPUT_IDS" data_type: TYPE_INT64 dims: [ -1 ] }, { name: "ATTENTION_MASK" data_type: TYPE_INT64 dims: [ -1 ] }'
_MASK = '{ name: "ATTENTION_MASK" data_type: TYPE_INT64 dims: [ -1 ] }'
_HIDDEN = f'{{ name: "{CUT}" data_type: TYPE_FP32 dims: [ -1, 384 ] }}'
_EMBEDDING = '{ name: "EMBEDDING" data_type: TYPE_FP32 dims: [ 384 ] }'
_ONNX = 'backend: "onnxruntime"\nmax_batch_size: 8\ninput [ %s ]\noutput [ %s ]\ninstance_group [ { kind: KIND_CPU } ]\n'
_ENCODER_STEPS = f"""
ensemble_scheduling {{ step [
  {{ model_name: "encoder_back" model_version: -1
    input_map {{ key: "{CUT}" value: "hidden" }} input_map {{ key: "ATTENTION_MASK" value: "ATTENTION_MASK" }}
    output_map {{ key: "EMBEDDING" value: "EMBEDDING" }} }},
  {{ model_name: "encoder_front" model_version: -1
    input_map {{ key: "INPUT_IDS" value: "INPUT_IDS" }} input_map {{ key: "ATTENTION_MASK" value: "ATTENTION_MASK" }}
    output_map {{ key: "{CUT}" value: "hidden" }} }}
] }}
"""

_TEXT = '{ name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] }'
_TEXT_STEPS = _ENCODER_STEPS.replace(
    "step [",
    """step [
  { model_name: "bytes_tokenizer" model_version: -1
    input_map { key: "TEXT" value: "TEXT" }
    output_map { key: "INPUT_IDS" value: "INPUT_IDS" } output_map { key: "ATTENTION_MASK" value: "ATTENTION_MASK" } },""",
)
_TOKENIZER = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(each, "TEXT").as_numpy()) for each in requests]

    def answer(self, texts):
        rows = [[101, *(1000 + byte for byte in text), 102] for (text,) in texts]
        longest = max(map(len, rows))
        ids = np.array([row + [0] * (longest - len(row)) for row in rows], np.int64)
        mask = (ids > 0).astype(np.int64)
        return pb_utils.InferenceResponse([pb_utils.Tensor("INPUT_IDS", ids), pb_utils.Tensor("ATTENTION_MASK", mask)])
"""

_FRONT = """
import time

import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(each, "X").as_numpy(), each) for each in requests]

    def answer(self, x, request):
        if (x == -3).any():
            time.sleep(1)
        if (x == -1).any():
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("it takes no -1"))
        text = pb_utils.get_input_tensor_by_name(request, "T").as_numpy()
        rows = np.arange(len(x), dtype=np.int64).reshape(-1, 1)
        return pb_utils.InferenceResponse([pb_utils.Tensor("H", x * 2), pb_utils.Tensor("S", text), pb_utils.Tensor("N", rows)])
"""
_BACK = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        found = [pb_utils.get_input_tensor_by_name(each, "H").as_numpy() for each in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", h + np.float32(0.5)), pb_utils.Tensor("B", h > 2)]) for h in found]
"""
_X = '{ name: "X" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "T" data_type: TYPE_STRING dims: [ 1 ] }'
_H = '{ name: "H" data_type: TYPE_FP32 dims: [ -1 ] }'
_Y = '{ name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "B" data_type: TYPE_BOOL dims: [ -1 ] }'
_S = '{ name: "S" data_type: TYPE_STRING dims: [ 1 ] }, { name: "N" data_type: TYPE_INT64 dims: [ 1 ] }'
_PYTHON = _ONNX.replace("onnxruntime", "python")
_ENSEMBLE = 'platform: "ensemble"\nmax_batch_size: 8\ninput [ %s ]\noutput [ %s ]\n'
_PAIR_STEPS = """
ensemble_scheduling { step [
  { model_name: "front" model_version: -1
    input_map { key: "X" value: "X" } input_map { key: "T" value: "T" }
    output_map { key: "H" value: "h" } output_map { key: "S" value: "S" } output_map { key: "N" value: "N" } },
  { model_name: "back" model_version: -1
    input_map { key: "H" value: "h" } output_map { key: "Y" value: "Y" } output_map { key: "B" value: "B" } }
] }
"""
SHARDED, PLAIN = "pair_sharded", "pair_triton_"
"""The same ensemble twice, carried out by the gateway and by Triton; their names are of one length, as lengths are compared."""


def write_repository(root: Path) -> None:
    _cut_encoder(root)
    _write(root, "encoder", _ONNX % (_IDS, _EMBEDDING) + _MIB % 75)
    shutil.copy(ENCODER, root / "encoder/1/model.onnx")
    _write(root, "encoder_sharded", _ENSEMBLE % (_IDS, _EMBEDDING) + _SHARDED + _ENCODER_STEPS)
    _write(root, "texts_sharded", _ENSEMBLE % (_TEXT, _EMBEDDING) + _SHARDED + _TEXT_STEPS)
    _write(root, "bytes_tokenizer", _PYTHON % (_TEXT, _IDS) + _MIB % 5, _TOKENIZER)
    _write(root, "front", _PYTHON % (_X, f"{_H}, {_S}") + _MIB % 10 + _KEPT, _FRONT)
    _write(root, "back", _PYTHON % (_H, _Y) + _MIB % 10 + _KEPT, _BACK)
    _write(root, PLAIN, _ENSEMBLE % (_X, f"{_Y}, {_S}") + _MIB % 1 + _PAIR_STEPS)
    _write(root, SHARDED, _ENSEMBLE % (_X, f"{_Y}, {_S}") + _SHARDED + _PAIR_STEPS)
    _write(
        root,
        "nested",
        _ENSEMBLE % (_X, _S)
        + _SHARDED
        + _PAIR_STEPS.replace('"front"', f'"{SHARDED}"').replace('key: "H" value: "h"', 'key: "Y" value: "h"', 1),
    )
    _write(root, "circle", _ENSEMBLE % (_X, _Y) + _SHARDED + _PAIR_STEPS.replace('value: "X"', 'value: "Y"'))


def _write(root: Path, name: str, config: str, code: str = "") -> None:
    (root / name / "1").mkdir(parents=True, exist_ok=True)
    (root / name / "config.pbtxt").write_text(config)
    if code:
        (root / name / "1/model.py").write_text(code)


def _cut_encoder(root: Path) -> None:
    """Cut the encoder into two ONNX files, as docs/how-to/sharding.md does."""
    model = onnx.load(str(ENCODER))
    hidden = onnx.helper.make_tensor_value_info(CUT, onnx.TensorProto.FLOAT, ["batch", "length", 384])
    model.graph.value_info.append(hidden)  # the type of the tensor at which it is cut has to be known
    marked = root.parent / "marked.onnx"
    onnx.save(model, str(marked))
    for name, inputs, outputs, declared in (
        ("encoder_front", ["INPUT_IDS", "ATTENTION_MASK"], [CUT], (_IDS, _HIDDEN)),
        ("encoder_back", [CUT, "ATTENTION_MASK"], ["EMBEDDING"], (f"{_HIDDEN}, {_MASK}", _EMBEDDING)),
    ):
        _write(root, name, _ONNX % declared + _MIB % 60 + "response_cache { enable: true }\n")
        extract_model(str(marked), str(root / name / "1/model.onnx"), inputs, outputs, check_model=False, infer_shapes=False)
    marked.unlink()
