"""The models of `perf.soak`: one that answers with its input, the same with its answers kept, one that streams, and many that are cold."""

from __future__ import annotations

from pathlib import Path

FRESH, REPEATED, STREAMED = "fresh", "repeated", "streamed"
HOT = (FRESH, REPEATED, STREAMED)
COLD = tuple(f"cold_{number:02}" for number in range(12))
SIZE_MIB = 24
"""Memory that each model declares."""
ROOM_MIB = SIZE_MIB * (len(HOT) + 3)
"""Memory budget of each server: the hot models and three cold ones have room."""
PARTS = 3
"""Messages of a streamed answer."""

_ECHO = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy())])
            for request in requests
        ]
"""
_ECHO_TENSORS = """max_batch_size: 64
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
dynamic_batching { }
"""
_STREAM = f"""
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()
            for _ in range({PARTS}):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text.astype(object))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_STREAM_TENSORS = """max_batch_size: 0
model_transaction_policy { decoupled: true }
input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
_ALL = f"""backend: "python"
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
parameters {{ key: "tidegate_resident_bytes" value {{ string_value: "{SIZE_MIB}MiB" }} }}
"""
_KEEPS_ANSWERS = "response_cache { enable: true }\n"


def write(root: Path) -> Path:
    """A repository with all of them."""
    for name in (*HOT, *COLD):
        (root / name / "1").mkdir(parents=True)
        code, tensors = (_STREAM, _STREAM_TENSORS) if name == STREAMED else (_ECHO, _ECHO_TENSORS)
        (root / name / "1" / "model.py").write_text(code)
        (root / name / "config.pbtxt").write_text(_ALL + tensors + (_KEEPS_ANSWERS if name == REPEATED else ""))
    return root
