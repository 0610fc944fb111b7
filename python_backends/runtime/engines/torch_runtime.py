"""The runtime `torch`: runs PyTorch programs written by `export/variants/torch_program.py`, on a CPU or a GPU.

The parameter `torch_mode` chooses how; the default is the recipe's choice, else the mode for the device:

    eager                 operator by operator; the default on a CPU compiled              through
    torch.compile, shapes dynamic; needs a C++ compiler on a CPU and OpenAI's Triton on a GPU cuda_graphs
    eager, recorded once per bucket of shapes and replayed; the default on a GPU compiled_cuda_graphs
    compiled, recorded and replayed
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from python_backends.runtime.engines.buckets import cut, pad_into
from python_backends.runtime.engines.cpu import thread_count, usable_cpu_count
from python_backends.runtime.engines.cuda_graphs import CudaGraphs, RecordedModule, buckets_for
from python_backends.runtime.errors import ConfigError, ExecutionError
from python_backends.runtime.execution import Array, Tensors
from python_backends.runtime.interface import Interface, by_name, read_interface
from python_backends.runtime.model_config import ModelConfig
from python_backends.runtime.signature import Signature

MODE_PARAMETER = "torch_mode"
MODE_ENTRY = "torch_mode"

# Mode -> whether it compiles, and whether it records CUDA graphs.
MODES: Mapping[str, tuple[bool, bool]] = {
    "eager": (False, False),
    "compiled": (True, False),
    "cuda_graphs": (False, True),
    "compiled_cuda_graphs": (True, True),
}
DEFAULT_MODES = {"cpu": "eager", "cuda": "cuda_graphs"}

# torch.compile makes one graph for a batch of one, and another for all other batches; both are compiled at
# load, not while a request waits.
WARM_UP_BATCHES = (1, 3)
WARM_UP_SIZE = 8

Module = Callable[..., Sequence[Tensor]]
Compute = Callable[[Sequence[Array]], Sequence[Array]]


class TorchRuntime:
    """A loaded program. Several threads may run it at once: PyTorch releases the GIL while it computes."""

    def __init__(self, compute: Compute, interface: Interface) -> None:
        self._compute: Compute | None = compute
        self._interface = interface

    @property
    def signature(self) -> Signature:
        """Inputs and outputs of the program."""
        return self._interface.signature

    def run(self, output_names: Sequence[str], inputs: Tensors) -> Sequence[Array]:
        """See `Runtime.run`."""
        assert self._compute is not None, "closed"
        self._interface.check(output_names, inputs)
        try:
            outputs = self._compute([inputs[spec.name] for spec in self._interface.inputs])
        except Exception as exc:
            # PyTorch's errors have no common base class. Whatever it is, it must fail only this group.
            raise ExecutionError(f"PyTorch error: {exc}") from exc
        return by_name(self._interface, output_names, outputs)

    def close(self) -> None:
        """Drop the program, and return its GPU memory to the driver."""
        self._compute = None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def open_model(path: Path, config: ModelConfig, *, kind: str, device_id: int) -> TorchRuntime:
    """Load a program for an instance of `kind` ("CPU", "GPU", ...) on `device_id`.

    On a CPU the number of threads applies to the whole process, since PyTorch has a single thread pool.

    Raises:
        ConfigError: The file is not a program, or this machine lacks what the mode needs.
    """
    interface = read_interface(path.parent)
    device = _device(config, kind, device_id)
    program, mode = _load(path, config)
    compiled, recorded = _mode(config, config.parameters.get(MODE_PARAMETER) or mode or DEFAULT_MODES[device.type], device)
    if device.type == "cpu":
        torch.set_num_threads(thread_count(config, usable_cpu_count()))
    try:
        module = _module(program, device, compiled=compiled)
        if recorded:
            buckets = buckets_for(interface, config.max_batch_size)
            return TorchRuntime(RecordedModule(module, interface, CudaGraphs(device), buckets), interface)
        compute = on_device(module, device)
        if compiled:
            compute = pad_ones_to_two(compute, interface)
            _warm_up(compute, interface)
    except Exception as exc:
        raise ConfigError(f"model '{config.name}': PyTorch cannot prepare '{path}' on {device}: {exc}") from exc
    return TorchRuntime(compute, interface)


def on_device(module: Module, device: torch.device) -> Compute:
    """Wrap `module` as a function of NumPy arrays, which are copied to the device and back."""

    def compute(arrays: Sequence[Array]) -> Sequence[Array]:
        with torch.inference_mode():
            outputs = module(*(_tensor(array).to(device) for array in arrays))
            return [output.cpu().numpy() for output in outputs]

    return compute


def pad_ones_to_two(compute: Compute, interface: Interface) -> Compute:
    """Wrap `compute` so that every dimension but the batch is padded to at least 2: a size of 1 would trigger
    a recompilation.
    """

    def compute_padded(arrays: Sequence[Array]) -> Sequence[Array]:
        sizes = interface.sizes(arrays)
        padded = {name: size if name == "batch" else max(2, size) for name, size in sizes.items()}
        if padded == sizes:
            return compute(arrays)
        larger = [np.zeros(spec.shape(padded), spec.dtype) for spec in interface.inputs]
        for target, array in zip(larger, arrays, strict=True):
            pad_into(target, array)
        return [cut(output, spec.shape(sizes)) for output, spec in zip(compute(larger), interface.outputs, strict=True)]

    return compute_padded


def _tensor(array: Array) -> Tensor:
    # PyTorch refuses negative strides, and warns about read-only arrays; a copy avoids both. It never writes
    # to inputs.
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def _device(config: ModelConfig, kind: str, device_id: int) -> torch.device:
    if kind != "GPU":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError(f"model '{config.name}' needs an NVIDIA GPU and a CUDA build of PyTorch (this is {torch.__version__})")
    return torch.device("cuda", device_id)


def _load(path: Path, config: ModelConfig) -> tuple[torch.export.ExportedProgram, str]:
    extra_files: dict[str, Any] = {MODE_ENTRY: ""}
    try:
        program = torch.export.load(path, extra_files=extra_files)
    except Exception as exc:
        raise ConfigError(f"model '{config.name}': PyTorch {torch.__version__} cannot load '{path}': {exc}") from exc
    mode = extra_files[MODE_ENTRY]
    return program, mode.decode() if isinstance(mode, bytes) else mode


def _mode(config: ModelConfig, mode: str, device: torch.device) -> tuple[bool, bool]:
    if mode not in MODES:
        raise ConfigError(f"model '{config.name}': unknown {MODE_PARAMETER} '{mode}', known are: {', '.join(MODES)}")
    compiled, recorded = MODES[mode]
    if recorded and device.type == "cpu":
        raise ConfigError(f"model '{config.name}': {MODE_PARAMETER} '{mode}' needs an instance on a GPU (`kind: KIND_GPU`)")
    if compiled and device.type == "cpu" and shutil.which("g++") is None:
        raise ConfigError(
            f"model '{config.name}': {MODE_PARAMETER} '{mode}' needs the C++ compiler g++ on this machine: install it or use 'eager'"
        )
    if compiled and device.type == "cuda" and find_spec("triton") is None:
        raise ConfigError(
            f"model '{config.name}': {MODE_PARAMETER} '{mode}' needs the Python package triton: install it or use 'cuda_graphs'"
        )
    return compiled, recorded


def _module(program: torch.export.ExportedProgram, device: torch.device, *, compiled: bool) -> Module:
    if device.type != "cpu":
        from torch.export.passes import move_to_device_pass

        program = move_to_device_pass(program, device)
    # Guards are not needed: `Interface.check` has made the same checks.
    module = program.module(check_guards=False)
    function = torch.compile(module, dynamic=True) if compiled else module

    def call(*tensors: Tensor) -> Sequence[Tensor]:
        outputs = function(*tensors)
        return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)

    return call


def _warm_up(compute: Compute, interface: Interface) -> None:
    names = [dim for spec in interface.inputs for dim in spec.dims if isinstance(dim, str)]
    for batch in WARM_UP_BATCHES:
        sizes = {name: batch if name == "batch" else WARM_UP_SIZE for name in names}
        compute([np.zeros(spec.shape(sizes), spec.dtype) for spec in interface.inputs])
