"""Preflight checks of a model's files before Triton is asked to load it: finds what would fail for certain,
and says what is right.

Of these mistakes Triton (24.10) leaves some out of its answer, and some make a load hang; and a full server
would have unloaded another model before any of them shows. What needs the model's code or its runtime to be
checked is left to Triton. Used by `managed_repository`, on the source folder of the model.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import IO

from control_plane.core.errors import ModelLoadFailed
from control_plane.protocols.kserve.messages import model_config_pb2
from control_plane.triton.adapters.model_config import config_file, read_config

_PYTHON = "python"
_ONNX = "onnxruntime"
_PYTORCH = "pytorch"
_FILES: Mapping[str, str] = {_PYTHON: "model.py", _ONNX: "model.onnx", "tensorrt": "model.plan", _PYTORCH: "model.pt"}
"""File that each backend loads from a version's folder, unless `default_model_filename` says otherwise."""

_AOTI = "torch_aoti"
"""Platform of PyTorch models that are compiled ahead of time."""

_PLATFORMS: Mapping[str, str] = {
    "onnxruntime_onnx": _ONNX,
    "tensorrt_plan": "tensorrt",
    "pytorch_libtorch": _PYTORCH,
    _AOTI: _PYTORCH,
    "tensorflow_savedmodel": "tensorflow",
    "tensorflow_graphdef": "tensorflow",
}
"""Backend of each `platform`, the older way to name one."""

_ENSEMBLE = "ensemble"
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_GRAPH = 7
"""Number of the field `graph` in ModelProto (onnx.proto)."""
_MAX_FIELDS = 10_000


def require_loadable(folder: Path, config_name: str, *, backends: Collection[str] | None = None) -> None:
    """Raise ModelLoadFailed, saying what would be right, if Triton could not load the model in this folder.

    `config_name` is from `triton/config_name.config_name_in_force`; `backends` are those that this Triton
    has, None if unknown.
    """
    config = read_config(config_file(folder, config_name))
    _require_name(folder, config)
    if config.platform == _ENSEMBLE or config.HasField("ensemble_scheduling"):
        return
    backend = config.backend or _PLATFORMS.get(config.platform, "")
    _require_backend(folder, config, backend, backends)
    for version in _versions_to_load(folder, config):
        name = config.default_model_filename or _file_of(config, backend) or _file_there(version)
        if name and not config.cc_model_filenames:
            _require_file(folder.name, version / name, backend)


def _require_name(folder: Path, config: model_config_pb2.ModelConfig) -> None:
    if config.name not in ("", folder.name):
        raise ModelLoadFailed(
            f"the configuration of {folder} is for a model called {config.name!r}; give that name to the folder, or leave it out"
        )


def _require_backend(folder: Path, config: model_config_pb2.ModelConfig, backend: str, backends: Collection[str] | None) -> None:
    if not backend or backends is None or backend in backends or config.runtime:
        return
    if any(folder.glob(f"**/libtriton_{backend}.so")):  # the model brings its backend along
        return
    there = ", ".join(sorted(backends))
    raise ModelLoadFailed(
        f"model {folder.name!r} needs the backend {backend!r}, and this Triton has {there}; "
        "attach a Triton that has it (--triton-url), or export the model for one of these"
    )


def _versions_to_load(folder: Path, config: model_config_pb2.ModelConfig) -> list[Path]:
    """Return the version folders that Triton would load by the model's version policy; without one that is
    the latest version.
    """
    there = {int(entry.name): entry for entry in _entries(folder) if entry.name.isdecimal() and entry.is_dir()}
    if not there:
        raise ModelLoadFailed(f"model {folder.name!r} has no version folder: what it is loaded from goes into {folder / '1'}")
    policy = config.version_policy
    if policy.HasField("all"):
        return list(there.values())
    if policy.HasField("specific"):
        return [_version(folder, there, number) for number in policy.specific.versions]
    return [there[number] for number in sorted(there)[-max(1, policy.latest.num_versions) :]]


def _version(folder: Path, there: Mapping[int, Path], number: int) -> Path:
    if number not in there:
        found = ", ".join(map(str, sorted(there)))
        raise ModelLoadFailed(f"the version_policy of model {folder.name!r} names version {number}, and in {folder} there is {found}")
    return there[number]


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as exc:
        raise ModelLoadFailed(f"{folder} cannot be read: {exc.strerror}") from exc


def _file_of(config: model_config_pb2.ModelConfig, backend: str) -> str:
    """Return the file that the backend loads if the configuration names none; empty if nobody knows."""
    # Of PyTorch's the Python runtime takes model.py, to which model.pt may have the weights, or else model.pt; and what is
    # compiled ahead of time is model.pt2, or model.pt for older releases.
    is_open = backend == _PYTORCH and (config.runtime or config.platform == _AOTI)
    return "" if is_open else _FILES.get(backend, "")


def _file_there(version: Path) -> str:
    """Return the file from which Triton would complete a configuration without a backend; empty if there is
    none.
    """
    return next((name for name in _FILES.values() if (version / name).is_file()), "")


def _require_file(model: str, file: Path, backend: str) -> None:
    """Raise ModelLoadFailed unless the file that a backend loads is there, readable and plausible."""
    try:
        if file.is_dir() and backend != _PYTHON:  # a model of several files, such as ONNX with external data
            if backend != _ONNX:
                return
            file /= _FILES[_ONNX]
        found = file.stat()
        with file.open("rb") as content:
            _require_content(model, file, content, found.st_size)
    except FileNotFoundError as exc:
        leads = f" (it is a link to {os.readlink(file)})" if file.is_symlink() else ""
        raise ModelLoadFailed(f"model {model!r} cannot be loaded: {file} is missing{leads}, which its backend loads it from") from exc
    except OSError as exc:
        raise ModelLoadFailed(f"model {model!r} cannot be loaded: {file} cannot be read: {exc.strerror}") from exc


def _require_content(model: str, file: Path, content: IO[bytes], size: int) -> None:
    if size == 0:
        raise ModelLoadFailed(f"model {model!r} cannot be loaded: {file} is empty")
    if content.read(len(_LFS_POINTER)) == _LFS_POINTER:
        raise ModelLoadFailed(f"model {model!r} cannot be loaded: {file} is a Git LFS pointer instead of the file; run `git lfs pull`")
    if file.suffix == ".onnx" and (wrong := _wrong_in_onnx(content, size)):
        raise ModelLoadFailed(f"model {model!r} cannot be loaded: {file} {wrong}")


def _wrong_in_onnx(content: IO[bytes], size: int) -> str:
    """Return what is wrong with an ONNX file, or an empty text.

    Only the tags and lengths of ModelProto's outermost fields are read, by seeking: a file of gigabytes costs
    a few reads.
    """
    at, has_graph = 0, False
    for _ in range(_MAX_FIELDS):
        if at == size:
            return "" if has_graph else "has no graph"
        content.seek(at)
        field = _field(content.read(20))
        if field is None:
            return "is no ONNX model"
        number, length = field
        at, has_graph = at + length, has_graph or number == _GRAPH
        if at > size:
            return f"is cut short: {at - size} bytes of it are missing"
    return ""


def _field(head: bytes) -> tuple[int, int] | None:
    """Return a protobuf field's number and its length with tag; None if the bytes are no field."""
    tag, at = _varint(head, 0)
    number, kind = tag >> 3, tag & 7
    if not 0 < number < 1 << 29:
        return None
    if kind == 0:
        return number, _varint(head, at)[1]
    if kind == 2:
        length, at = _varint(head, at)
        return number, at + length
    return {1: (number, at + 8), 5: (number, at + 4)}.get(kind)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value, end = 0, at
    while end < len(data):
        value |= (data[end] & 0x7F) << 7 * (end - at)
        end += 1
        if data[end - 1] < 0x80:
            break
    return value, end
