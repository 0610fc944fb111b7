"""An ONNX Runtime session for a model configuration, with the native backend's keys and meanings.

Follows `ModelState` in onnxruntime_backend r24.10, except for the default of `intra_op_thread_count`: the
native backend gives each instance a thread per core; here the CPUs are divided among the model's instances
(`cpu.py`), since more threads than cores spin and wait for each other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import onnxruntime as ort

from python_backends.runtime.engines.cpu import thread_count, usable_cpu_count
from python_backends.runtime.engines.execution_providers import CPU, Provider, execution_providers
from python_backends.runtime.errors import ConfigError, ExecutionError, RequestError
from python_backends.runtime.execution import Array, Run, Tensors
from python_backends.runtime.model_config import ModelConfig
from python_backends.runtime.signature import Signature, read_signature
from python_backends.runtime.streaming.budget import weight_memory_bytes

if TYPE_CHECKING:
    from python_backends.runtime.streaming.streamed import StreamedRuntime

if not hasattr(ort, "InferenceSession"):
    # A stub's sys.path begins with the server's working directory, and the backend's own folder has the
    # library's name.
    raise ImportError(f"`import onnxruntime` found {list(ort.__path__)} and not the library: start tritonserver in another directory")

_SOURCE = re.compile(r"Load model from .*? failed:(?:/\S+:\d+ .*?\) (?=[A-Z]))?")
"""Of an error of a load: the file again, and the place and the C++ signature in ONNX Runtime's own source."""

DEFAULT_FILENAME = "model.onnx"

# `optimization.graph.level` -> ONNX Runtime's level; any other value leaves all optimizations on.
GRAPH_LEVELS = {
    -1: ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    1: ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
EXECUTION_MODES = {0: ort.ExecutionMode.ORT_SEQUENTIAL, 1: ort.ExecutionMode.ORT_PARALLEL}

# Parameters of this name are ONNX Runtime's own, passed on as they are; booleans may be written as Triton
# reads them.
SESSION_KEYS = "session."
SESSION_WORDS = {"true": "1", "on": "1", "false": "0", "off": "0"}
ARENA_SHRINKAGE = "memory.enable_memory_arena_shrinkage"


def find_model_file(version_directory: Path, config_filename: str) -> Path:
    """Return the ONNX file of a version: `config_filename` (default model.onnx), or model.onnx in it if that
    is a directory.

    Raises:
        ConfigError: There is no such file.
    """
    path = version_directory / (config_filename or DEFAULT_FILENAME)
    if path.is_dir():
        path /= DEFAULT_FILENAME
    if not path.is_file():
        raise ConfigError(f"unable to find '{path}'")
    return path


class OnnxRuntime:
    """The runtime `onnxruntime`: a session on the providers of the configuration and the instance's kind."""

    def __init__(self, session: ort.InferenceSession, config: ModelConfig) -> None:
        self.signature: Signature = read_signature(session)
        self._run: Run | None = run_function(session, config)

    def run(self, output_names: Sequence[str], inputs: Tensors) -> Sequence[Array]:
        """See `Runtime.run`. ONNX Runtime itself checks the inputs."""
        assert self._run is not None, "closed"
        return self._run(output_names, inputs)

    def close(self) -> None:
        """Drop the session, which frees its memory."""
        self._run = None


def open_model(path: Path, config: ModelConfig, *, kind: str, device_id: int) -> OnnxRuntime | StreamedRuntime:
    """Load the ONNX file for an instance of `kind` ("CPU", "GPU", ...) on `device_id`, whole or streamed.

    Raises:
        ConfigError: As for `find_model_file`, `open_session`, `read_signature` and `StreamedRuntime`.
    """
    file = find_model_file(path.parent, path.name)
    if (budget_bytes := weight_memory_bytes(config)) is not None:
        from python_backends.runtime.streaming.streamed import StreamedRuntime  # which opens its parts with this module

        if kind == "GPU" or config.cpu_accelerators:
            raise ConfigError(f"model '{config.name}': weights are streamed to ONNX Runtime on a CPU only, without accelerators")
        return StreamedRuntime(file, config, budget_bytes)
    return OnnxRuntime(open_session(file, config, kind=kind, device_id=device_id), config)


def session_options(config: ModelConfig, *, cpu_count: int) -> ort.SessionOptions:
    """Return the session options of one instance, where `cpu_count` CPUs may be used.

    Raises:
        ConfigError: A parameter has a value that its key does not allow.
    """
    options = ort.SessionOptions()
    options.graph_optimization_level = GRAPH_LEVELS.get(config.graph_level, ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
    options.execution_mode = _execution_mode(config)
    options.intra_op_num_threads = thread_count(config, cpu_count)
    options.inter_op_num_threads = config.integer("inter_op_thread_count", 0)
    if (enable_mem_arena := config.boolean("enable_mem_arena")) is not None:
        options.enable_cpu_mem_arena = enable_mem_arena
    if (enable_mem_pattern := config.boolean("enable_mem_pattern")) is not None:
        options.enable_mem_pattern = enable_mem_pattern
    for key, value in config.parameters.items():
        if key.startswith(SESSION_KEYS):
            options.add_session_config_entry(key, SESSION_WORDS.get(value.lower(), value))
    return options


def open_session(path: Path, config: ModelConfig, *, kind: str, device_id: int) -> ort.InferenceSession:
    """Load the ONNX file for an instance of `kind` ("CPU", "GPU", ...) on `device_id`.

    Raises:
        ConfigError: ONNX Runtime cannot load the file, or a provider that the configuration needs is missing
        or unusable.
    """
    providers = execution_providers(config, kind=kind, device_id=device_id, available=ort.get_available_providers())
    session = _load(path, config, session_options(config, cpu_count=usable_cpu_count()), providers)
    # If a GPU library or driver is missing, ONNX Runtime only logs a warning and continues without the
    # provider.
    missing = [name for name, _ in providers if name not in session.get_providers()]
    if missing:
        raise ConfigError(f"model '{config.name}': {', '.join(missing)} could not be initialised on device {device_id}, see the log above")
    return session


def open_session_to_describe(path: Path, config: ModelConfig) -> ort.InferenceSession:
    """Open a session for reading the signature only; without optimizations it opens in a fraction of the
    time.

    Raises:
        ConfigError: ONNX Runtime cannot load the file.
    """
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return _load(path, config, options, [CPU])


def open_part(model: bytes, path: Path, config: ModelConfig, options: ort.SessionOptions) -> ort.InferenceSession:
    """Open a part of the ONNX file `path` on the CPU. Raises ConfigError: ONNX Runtime cannot."""
    return _load(path, config, options, [CPU], model=model)


def run_function(session: ort.InferenceSession, config: ModelConfig) -> Run:
    """Return the session's `run` with the configuration's run options and errors of this package.

    It raises RequestError if ONNX Runtime finds the inputs wrong (the native backend reports INTERNAL), else
    ExecutionError.
    """
    options = _run_options(config)
    invalid_argument: type[Exception] = ort.capi.onnxruntime_pybind11_state.InvalidArgument

    def run(output_names: Sequence[str], inputs: Mapping[str, Array]) -> Sequence[Array]:
        try:
            return session.run(output_names, inputs, options)  # type: ignore[no-any-return]
        except (invalid_argument, ValueError) as exc:
            # ValueError: an input is missing, which the Python layer sees first.
            raise RequestError(f"onnx runtime error: {exc}") from exc
        except Exception as exc:
            # ONNX Runtime's errors have no common base class. Whatever it is, it must fail only this group.
            raise ExecutionError(f"onnx runtime error: {exc}") from exc

    return run


def _load(
    path: Path, config: ModelConfig, options: ort.SessionOptions, providers: Sequence[Provider], *, model: bytes | None = None
) -> ort.InferenceSession:
    try:
        for filename in config.op_library_filenames:
            options.register_custom_ops_library(filename)
        return ort.InferenceSession(path if model is None else model, options, providers=providers)
    except Exception as exc:
        # ONNX Runtime's errors share no base class below Exception.
        told = _SOURCE.sub("", str(exc))
        raise ConfigError(f"model '{config.name}': ONNX Runtime {ort.__version__} cannot load '{path.resolve()}': {told}") from exc


def _run_options(config: ModelConfig) -> ort.RunOptions | None:
    if ARENA_SHRINKAGE not in config.parameters:
        return None
    options = ort.RunOptions()
    options.add_run_config_entry(ARENA_SHRINKAGE, config.parameters[ARENA_SHRINKAGE])
    return options


def _execution_mode(config: ModelConfig) -> ort.ExecutionMode:
    mode = config.integer("execution_mode", 0)
    if mode not in EXECUTION_MODES:
        raise ConfigError(f"model '{config.name}': parameter 'execution_mode' must be 0 (sequential) or 1 (parallel), not {mode}")
    return EXECUTION_MODES[mode]
