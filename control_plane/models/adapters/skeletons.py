"""Skeletons of models that load as they are: what `tidegate models init` writes for people to fill in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from control_plane.core.errors import Conflict, InvalidRequest
from control_plane.core.model import MODEL_NAME, NAME_RULE

_TENSORS = """
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""

_PYTHON_CONFIG = f"""# Answers with its input, until 1/model.py does something else.
backend: "python"
max_batch_size: 8
{_TENSORS}
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
"""

_PYTHON_MODEL = '''import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Answers with its input."""

    def initialize(self, args):
        """Load weights here: it is called once for each instance, and what it raises makes the load fail."""

    def execute(self, requests):
        """Answer each request: one response for each, in their order. A request may have several rows."""
        responses = []
        for request in requests:
            rows = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", rows)]))
        return responses
'''

_ONNX_CONFIG = f"""# Answers with its input: replace 1/model.onnx by yours, and name its inputs and outputs here.
backend: "onnxruntime"
max_batch_size: 8
{_TENSORS}
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
dynamic_batching {{ }}
"""

_ENSEMBLE_CONFIG = """# Requests go through the steps in one call; what one step gives, another may take.
platform: "ensemble"
max_batch_size: 8
{tensors}
ensemble_scheduling {{
  step [
    {{
      model_name: "{step}"
      model_version: -1
      input_map {{ key: "INPUT" value: "INPUT" }}
      output_map {{ key: "OUTPUT" value: "OUTPUT" }}
    }}
  ]
}}
"""

_MAX_NAME_CHARS = 240
"""Room for the end of a step's name, and for file systems."""
_FLOAT = 1
"""TensorProto.FLOAT (onnx.proto)."""


def write_skeleton(name: str, kind: str, into: Path) -> list[Path]:
    """Write a model of a kind of `SKELETONS` into a repository, and return its files; of an ensemble its step's, too.

    Raises InvalidRequest: the name cannot be a model's. Conflict: there is such a model already.
    """
    if not MODEL_NAME.fullmatch(name) or len(name) > _MAX_NAME_CHARS:
        raise InvalidRequest(f"the name {name[:100]!r} must be {NAME_RULE}")
    files = SKELETONS[kind](name)
    for model in dict.fromkeys(path.split("/")[0] for path in files):
        if (into / model).exists():
            raise Conflict(f"{into / model} is there already; choose another name, or remove it")
    try:
        for path, content in files.items():
            (into / path).parent.mkdir(parents=True, exist_ok=True)
            (into / path).write_bytes(content)
    except OSError as exc:
        raise InvalidRequest(f"{exc.filename or into} cannot be written: {exc.strerror}") from exc
    return [into / path for path in files]


def _python(name: str) -> Mapping[str, bytes]:
    return {f"{name}/config.pbtxt": _PYTHON_CONFIG.encode(), f"{name}/1/model.py": _PYTHON_MODEL.encode()}


def _onnx(name: str) -> Mapping[str, bytes]:
    return {f"{name}/config.pbtxt": _ONNX_CONFIG.encode(), f"{name}/1/model.onnx": _identity()}


def _ensemble(name: str) -> Mapping[str, bytes]:
    step = f"{name}_step"
    # Triton wants a version folder, and git keeps no empty one.
    config = _ENSEMBLE_CONFIG.format(tensors=_TENSORS, step=step).encode()
    return {f"{name}/config.pbtxt": config, f"{name}/1/.gitkeep": b"", **_python(step)}


SKELETONS: Mapping[str, Callable[[str], Mapping[str, bytes]]] = {"python": _python, "onnx": _onnx, "ensemble": _ensemble}
"""Files of a new model by their paths in the repository, by the kind of model."""


def _identity() -> bytes:
    """Return an ONNX model (ModelProto, IR version 8, opset 13) that gives what it takes: `[batch, 4] FP32`."""
    rows, columns = _message(1, _text(2, "batch")), _message(1, _number(1, 4))
    type_ = _message(2, _message(1, _number(1, _FLOAT) + _message(2, rows + columns)))
    node = _message(1, _text(1, "INPUT") + _text(2, "OUTPUT") + _text(4, "Identity"))
    graph = node + _text(2, "identity") + _message(11, _text(1, "INPUT") + type_) + _message(12, _text(1, "OUTPUT") + type_)
    return _number(1, 8) + _message(7, graph) + _message(8, _number(2, 13))


def _number(field: int, value: int) -> bytes:
    return bytes((field << 3, value))


def _message(field: int, content: bytes) -> bytes:
    assert len(content) < 0x80, "lengths of more than one byte are not needed here, and so not written"
    return bytes((field << 3 | 2, len(content))) + content


def _text(field: int, text: str) -> bytes:
    return _message(field, text.encode())
