"""The models that drills ask for: one file of code, which does as a request says."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path

from tritonclient.grpc import service_pb2

REPEATABLE_MODEL, ONCE_MODEL, TEXT_MODEL, WRITER = "steady", "once", "texts", "writer"
"""The third one embeds texts, each of which says what another model's numbers say. The last one generates texts piece by piece, with
the interface of Triton's vLLM backend."""
HANGS, CORRUPT, HOG = "hangs", "corrupt", "hog"
COLD = tuple(f"cold_{number:02}" for number in range(20))
WORK_S = 0.01
"""What one request takes unless a drill says otherwise."""
POISON, ENDLESS = -1.0, 3600.0
"""Instead of seconds: the process that computes it dies; it never ends."""
HOG_BYTES = 250 << 20
PADDING_BYTES = 4 << 20
"""Of a model that is fetched from a store."""
PIECES, PIECE_S = 8, 0.03
"""Of a generated text, and what each of them takes."""
SIZE, SMALL_SIZE = "24MiB", "1MiB"
"""That each declares, and those that embed or generate texts."""

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
_WRITER_CODE = """
import threading
import time

import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:  # each in a thread of its own, as a server of many streams does
            threading.Thread(target=self._write, args=(request, request.get_response_sender()), daemon=True).start()

    def _write(self, request, sender):
        number, pieces, seconds = self._input(request, "text_input").decode().split()
        said = [f"{number}.{each} " for each in range(int(pieces))]
        for each in said:
            if request.is_cancelled():
                break
            time.sleep(float(seconds))
            if self._input(request, "stream"):
                self._send(sender, each)
        self._send(sender, "" if self._input(request, "stream") else "".join(said))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _send(self, sender, text):
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", numpy.array([text.encode()], dtype=numpy.object_))]))

    def _input(self, request, name):
        tensor = pb_utils.get_input_tensor_by_name(request, name)
        return None if tensor is None else tensor.as_numpy()[0]
"""
_WRITER_CONFIG = """backend: "python"
max_batch_size: 0
model_transaction_policy { decoupled: true }
input [
  { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] optional: true },
  { name: "sampling_parameters" data_type: TYPE_STRING dims: [ 1 ] optional: true },
  { name: "exclude_input_in_output" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
parameters { key: "chat_template" value { string_value: "{% for each in messages %}{{ each.content }}{% endfor %}" } }
parameters { key: "tidegate_repeatable" value { string_value: "true" } }
parameters { key: "tidegate_resident_bytes" value { string_value: "1MiB" } }
"""
_TENSORS = """max_batch_size: 0
input [ { name: "X" data_type: %s dims: [ %d ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
parameters { key: "tidegate_resident_bytes" value { string_value: "%s" } }
"""
_LENGTH_BYTES = 4
"""Of a text in a tensor, before it."""
_MAY_REPEAT = "response_cache { enable: true }\n"
_CUT_ONNX = b"\x08\x09\x3a\xe8\x07" + b"graph"
"""Of a model that says it is longer than its file."""


def write(root: Path, names: Sequence[str], *, padding_bytes: int = 0) -> Path:
    """A repository with these models, each with a file of so many bytes beside its code."""
    for name in names:
        folder = root / name / "1"
        folder.mkdir(parents=True)
        if name == WRITER:
            (folder / "model.py").write_text(_WRITER_CODE)
            (root / name / "config.pbtxt").write_text(_WRITER_CONFIG)
            continue
        backend, file, content = ("onnxruntime", "model.onnx", _CUT_ONNX) if name == CORRUPT else ("python", "model.py", _CODE.encode())
        (folder / file).write_bytes(content)
        if padding_bytes:
            (folder / "weights.bin").write_bytes(bytes(padding_bytes))
        repeats = "" if name == ONCE_MODEL else _MAY_REPEAT
        tensors = _TENSORS % (("TYPE_STRING", 1, SMALL_SIZE) if name == TEXT_MODEL else ("TYPE_FP32", 3, SIZE))
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
    return _number_in(service_pb2.ModelInferResponse.FromString(message))


def streamed_number(message: bytes) -> tuple[str, str]:
    """What a message of a ModelStreamInfer says of an answer's number, as text, and of an error."""
    answer = service_pb2.ModelStreamInferResponse.FromString(message)
    return ("", answer.error_message) if answer.error_message else (f"{_number_in(answer.infer_response)} ", "")


def prompt(number: float) -> str:
    """That asks `WRITER` for the text of this number."""
    return f"{number:.0f} {PIECES} {PIECE_S}"


def written(number: float) -> str:
    """The text of this number."""
    return "".join(f"{number:.0f}.{piece} " for piece in range(PIECES))


def written_number(text: str) -> float:
    """The number of a whole text. Raises ValueError of any other one."""
    number = float(text.partition(".")[0])
    if text != written(number):
        raise ValueError(f"no whole text: {text[:80]!r}")
    return number


def chat_body(model: str, number: float, *, is_streamed: bool) -> bytes:
    return json.dumps({"model": model, "messages": [{"role": "user", "content": prompt(number)}], "stream": is_streamed}).encode()


def chat_number(body: bytes) -> float:
    """The number in a whole answer of `/v1/chat/completions`. Raises ValueError, KeyError and others of one that has none."""
    return written_number(json.loads(body)["choices"][0]["message"]["content"])


def generate_body(number: float) -> bytes:
    return json.dumps({"text_input": prompt(number), "stream": True}).encode()


def generate_message(model: str, number: float) -> bytes:
    text = prompt(number).encode()
    request = service_pb2.ModelInferRequest(model_name=model, raw_input_contents=[struct.pack("<I", len(text)) + text, b"\1"])
    request.inputs.add(name="text_input", datatype="BYTES", shape=(1,))
    request.inputs.add(name="stream", datatype="BOOL", shape=(1,))
    data: bytes = request.SerializeToString()
    return data


def streamed_text(message: bytes) -> tuple[str, str]:
    """What a message of a ModelStreamInfer has of a generated text, and of an error."""
    answer = service_pb2.ModelStreamInferResponse.FromString(message)
    raw = answer.infer_response.raw_output_contents
    return raw[0][_LENGTH_BYTES:].decode() if raw else "", answer.error_message


def _number_in(answer: service_pb2.ModelInferResponse) -> float:
    found: float = struct.unpack("<f", answer.raw_output_contents[0])[0]
    return found
