"""The models that drills ask for: one file of code, which does as a request says."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path

from tritonclient.grpc import service_pb2

REPEATABLE_MODEL, ONCE_MODEL, TEXT_MODEL = "steady", "once", "texts"
"""The last one embeds texts, each of which says what another model's numbers say."""
HANGS, CORRUPT, HOG = "hangs", "corrupt", "hog"
COLD = tuple(f"cold_{number:02}" for number in range(20))
WORK_S = 0.01
"""What one request takes unless a drill says otherwise."""
POISON, ENDLESS = -1.0, 3600.0
"""Instead of seconds: the process that computes it dies; it never ends."""
HOG_BYTES = 250 << 20
PADDING_BYTES = 4 << 20
"""Of a model that is fetched from a store."""
SIZE, TEXT_MODEL_SIZE = "24MiB", "1MiB"
"""That each declares, and the one that embeds texts."""

_CODE = """
import os
import time

import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self._hoarded = []
        if args["model_name"] == "hangs":
            time.sleep(3600)

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        asked = pb_utils.get_input_tensor_by_name(request, "X").as_numpy().tolist()
        number, seconds, hoard_bytes = asked if len(asked) == 3 else map(float, asked[0].split())
        if seconds < 0:
            os.kill(os.getpid(), 9)
        if hoard_bytes:
            self._hoarded.append(numpy.ones(int(hoard_bytes), dtype=numpy.uint8))
        time.sleep(seconds)
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", numpy.array([number], dtype=numpy.float32))])
"""
_TENSORS = """max_batch_size: 0
input [ { name: "X" data_type: %s dims: [ %d ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
parameters { key: "tidegate_resident_bytes" value { string_value: "%s" } }
"""
_MAY_REPEAT = "response_cache { enable: true }\n"
_CUT_ONNX = b"\x08\x09\x3a\xe8\x07" + b"graph"
"""Of a model that says it is longer than its file."""


def write(root: Path, names: Sequence[str], *, padding_bytes: int = 0) -> Path:
    """A repository with these models, each with a file of so many bytes beside its code."""
    for name in names:
        folder = root / name / "1"
        folder.mkdir(parents=True)
        backend, file, content = ("onnxruntime", "model.onnx", _CUT_ONNX) if name == CORRUPT else ("python", "model.py", _CODE.encode())
        (folder / file).write_bytes(content)
        if padding_bytes:
            (folder / "weights.bin").write_bytes(bytes(padding_bytes))
        repeats = "" if name == ONCE_MODEL else _MAY_REPEAT
        tensors = _TENSORS % (("TYPE_STRING", 1, TEXT_MODEL_SIZE) if name == TEXT_MODEL else ("TYPE_FP32", 3, SIZE))
        (root / name / "config.pbtxt").write_text(f'backend: "{backend}"\n{tensors}{repeats}')
    return root


def http_body(number: float, seconds: float, hoard_bytes: float = 0.0) -> bytes:
    return json.dumps({"inputs": [{"name": "X", "shape": [3], "datatype": "FP32", "data": [number, seconds, hoard_bytes]}]}).encode()


def http_number(body: bytes) -> float:
    """That an answer has. Raises ValueError, KeyError and others of one that is none."""
    found: float = json.loads(body)["outputs"][0]["data"][0]
    return found


def embeddings_body(model: str, number: float, seconds: float, hoard_bytes: float = 0.0) -> bytes:
    return json.dumps({"model": model, "input": f"{number} {seconds} {hoard_bytes}"}).encode()


def embedded_number(body: bytes) -> float:
    """The number in an answer of `/v1/embeddings`, which is the first of its embedding. Raises ValueError, KeyError and others of an
    answer that has none."""
    found: float = json.loads(body)["data"][0]["embedding"][0]
    return found


def grpc_message(model: str, number: float, seconds: float, hoard_bytes: float = 0.0) -> bytes:
    request = service_pb2.ModelInferRequest(model_name=model, raw_input_contents=[struct.pack("<3f", number, seconds, hoard_bytes)])
    request.inputs.add(name="X", datatype="FP32", shape=(3,))
    data: bytes = request.SerializeToString()
    return data


def grpc_number(message: bytes) -> float:
    found: float = struct.unpack("<f", service_pb2.ModelInferResponse.FromString(message).raw_output_contents[0])[0]
    return found
