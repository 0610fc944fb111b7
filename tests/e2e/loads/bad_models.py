"""Models that the real Triton cannot load, each in its own way, and what is to be said of it."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_TENSORS = """
max_batch_size: 4
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""
PYTHON = f'backend: "python"\n{_TENSORS}'
ONNX = f'backend: "onnxruntime"\n{_TENSORS}'

_BODY = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
{initialize}

    def execute(self, requests):
        found = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", each)]) for each in found]
"""


def code(initialize: str = "pass") -> str:
    """A model that answers what it is sent, once it has done this."""
    return _BODY.format(initialize=textwrap.indent(textwrap.dedent(initialize), " " * 8))


def write(root: Path, name: str, config: str | None = PYTHON, files: dict[str, str | bytes] | None = None) -> Path:
    """A model's folder with these files, by their paths."""
    folder = root / name
    folder.mkdir(parents=True)
    if config is not None:
        (folder / "config.pbtxt").write_text(config)
    for path, content in ({"1/model.py": code()} if files is None else files).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def ensemble(step: str) -> str:
    step_ = f'model_name: "{step}" model_version: -1 input_map {{ key: "INPUT0" value: "INPUT0" }}'
    return (
        'platform: "ensemble"\nmax_batch_size: 4\n'
        'input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 1 ] } ]\noutput [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
        f'ensemble_scheduling {{ step [ {{ {step_} output_map {{ key: "OUTPUT0" value: "OUTPUT0" }} }} ] }}\n'
    )


@dataclass(frozen=True)
class BadModel:
    """One of them."""

    name: str
    says: str
    """What callers, the list of models and the log are told, among other things."""
    write: Callable[[Path], object]
    """Writes it into a repository."""


def _bad(name: str, says: str, config: str | None = PYTHON, files: dict[str, str | bytes] | None = None) -> BadModel:
    return BadModel(name, says, lambda root: write(root, name, config, files))


def _with_stub(root: Path) -> None:
    stub = write(root, "own_stub") / "triton_python_backend_stub"
    stub.write_text("#!/bin/sh\necho this stub is for another machine >&2\nexit 9\n")
    stub.chmod(0o755)


def _with_environment(root: Path) -> None:
    environment = root.parent / "environment"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin/activate").write_text("echo this environment is broken >&2\nexit 7\n")
    parameter = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{environment}" }} }}\n'
    write(root, "environment", PYTHON + parameter)


def _unreadable(root: Path) -> None:
    """For root as well."""
    loop = write(root, "link_loop", files={}) / "1"
    loop.mkdir()
    (loop / "model.py").symlink_to(loop / "model.py")


_PLAN = 'backend: "tensorrt"\n' + _TENSORS
_DIED = "its Python process {} before the model was ready"

BAD_MODELS = [
    _bad("no_model_py", "1/model.py is missing", files={"1/weights.bin": "x"}),
    _bad("no_version", "no version folder", files={"notes.txt": "x"}),
    _bad("empty_version", "1/model.py is missing", files={"1/.keep": ""}),
    _bad("missing_version", "names version 7", PYTHON + "version_policy { specific { versions: [ 7 ] } }\n"),
    _bad("config_syntax", "config.pbtxt:", PYTHON + "input [ {\n"),
    _bad(
        "config_kind",
        'Enum type "inference.ModelInstanceGroup.Kind" has no value named KIND_NONSENSE',
        PYTHON.replace("KIND_CPU", "KIND_NONSENSE"),
    ),
    _bad("config_name", "another", f'name: "another"\n{PYTHON}'),
    _bad("config_dims", "dimension must be integer >= 1", PYTHON.replace("dims: [ 1 ]", "dims: [ 0 ]", 1)),
    _bad("gpu", "has kind KIND_GPU but no GPUs are available", PYTHON.replace("KIND_CPU", "KIND_GPU")),
    _bad("backend", "'unheard_of'", PYTHON.replace('"python"', '"unheard_of"')),
    _bad("no_step", "'nowhere', which the ensemble 'no_step' needs", ensemble("nowhere"), {}),
    _bad("bad_step", "ValueError: weights of layer 3 are missing", ensemble("raises"), {}),
    _bad("lfs_pointer", "git lfs pull", ONNX, {"1/model.onnx": "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"}),
    _bad("onnx_empty", "is empty", ONNX, {"1/model.onnx": ""}),
    _bad("onnx_corrupt", "model.onnx", ONNX, {"1/model.onnx": "no ONNX at all"}),
    BadModel("link_loop", "model.py", _unreadable),
    _bad("syntax", "SyntaxError: expected ':' (model.py, line 2)", files={"1/model.py": "\nclass TritonPythonModel\n    pass\n"}),
    _bad("no_class", "has no attribute 'TritonPythonModel'", files={"1/model.py": "x = 1\n"}),
    _bad("imports", "ModuleNotFoundError: No module named 'nothing_like_this'", files={"1/model.py": code("import nothing_like_this")}),
    _bad(
        "raises",
        "ValueError: weights of layer 3 are missing",
        files={"1/model.py": code('raise ValueError("weights of layer 3 are missing")')},
    ),
    _bad("exits", _DIED.format("ended with exit status 3"), files={"1/model.py": code("import os; os._exit(3)")}),
    _bad("killed", _DIED.format("was killed by SIGSEGV"), files={"1/model.py": code("import os; os.kill(os.getpid(), 11)")}),
    _bad("exits_at_import", _DIED.format("ended with exit status 3"), files={"1/model.py": "import os\nos._exit(3)\n"}),
    _bad("killed_at_import", _DIED.format("was killed by SIGKILL"), files={"1/model.py": "import os\nos.kill(os.getpid(), 9)\n"}),
    BadModel("own_stub", "this stub is for another machine", _with_stub),
    BadModel("environment", "this environment is broken", _with_environment),
]


def mend(root: Path, name: str) -> None:
    """Put one that serves in its place."""
    shutil.rmtree(root / name)
    write(root, name)
