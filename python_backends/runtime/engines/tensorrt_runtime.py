"""The runtime `tensorrt`: runs engines built by `export/variants/tensorrt_engine.py`, on the same kind of GPU and
TensorRT version.

Follows the Python API of TensorRT 10. An engine has optimisation profiles, each for a range of shapes; a
request runs on the first profile that includes its shapes. PyTorch is not needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import tensorrt as trt

from python_backends.runtime.engines.cuda_memory import Buffer, CudaError, Stream
from python_backends.runtime.errors import ConfigError, ExecutionError, RequestError
from python_backends.runtime.execution import Array, Tensors
from python_backends.runtime.interface import Interface, Sizes, TensorSpec, by_name, read_interface
from python_backends.runtime.model_config import ModelConfig
from python_backends.runtime.signature import Signature

LOGGER = trt.Logger(trt.Logger.WARNING)


@dataclass(frozen=True, slots=True)
class _Profile:
    """An optimisation profile with its execution context: the smallest and largest shape of each input."""

    context: Any
    ranges: Mapping[str, tuple[Sequence[int], Sequence[int]]]

    def takes(self, shapes: Mapping[str, Sequence[int]]) -> bool:
        """Whether the profile includes inputs of these shapes."""
        return all(
            low <= size <= high
            for name, (least, greatest) in self.ranges.items()
            for low, size, high in zip(least, shapes[name], greatest, strict=True)
        )


class TensorRtRuntime:
    """A loaded engine. Calls from several threads take turns, as they would on the device anyway."""

    def __init__(self, engine: Any, interface: Interface, stream: Stream) -> None:
        self._interface, self._stream, self._engine = interface, stream, engine
        self._lock = Lock()
        self._profiles = [_open_profile(engine, interface, index, stream) for index in range(engine.num_optimization_profiles)]
        stream.synchronize()
        largest = self._largest_sizes()
        specs = (*interface.inputs, *interface.outputs)
        self._buffers = {spec.name: stream.buffer(_nbytes(spec, spec.shape(largest))) for spec in specs}

    @property
    def signature(self) -> Signature:
        """Inputs and outputs of the engine."""
        return self._interface.signature

    def run(self, output_names: Sequence[str], inputs: Tensors) -> Sequence[Array]:
        """See `Runtime.run`."""
        sizes = self._interface.check(output_names, inputs)
        profile = self._profile_for(inputs)
        try:
            with self._lock:
                return by_name(self._interface, output_names, self._compute(profile.context, inputs, sizes))
        except CudaError as exc:
            raise ExecutionError(f"TensorRT: {exc}") from exc

    def close(self) -> None:
        """Free device memory and pinned memory."""
        self._stream.select_device()
        for buffer in self._buffers.values():
            self._stream.free(buffer)
        # Contexts must be destroyed before their engine, which frees memory that they use.
        self._profiles.clear()
        self._engine = None
        self._stream.close()

    def _largest_sizes(self) -> Sizes:
        """Return the largest size of each named dimension over all profiles."""
        largest: dict[str, int] = {}
        for profile in self._profiles:
            for spec in self._interface.inputs:
                for dim, size in zip(spec.dims, profile.ranges[spec.name][1], strict=True):
                    largest[str(dim)] = max(size, largest.get(str(dim), 0))
        return largest

    def _profile_for(self, inputs: Tensors) -> _Profile:
        shapes = {name: array.shape for name, array in inputs.items()}
        for profile in self._profiles:
            if profile.takes(shapes):
                return profile
        shown = {name: list(shape) for name, shape in shapes.items()}
        raise RequestError(f"the engine was not built for inputs of the shapes {shown}")

    def _compute(self, context: Any, inputs: Tensors, sizes: Sizes) -> Sequence[Array]:
        self._stream.select_device()
        for spec in self._interface.inputs:
            array = inputs[spec.name]
            _require(context.set_input_shape(spec.name, array.shape), f"refuses the shape {list(array.shape)} of {spec.name}")
            self._stream.to_device(self._bind(context, spec), array)
        shapes = [self._output_shape(context, spec, sizes) for spec in self._interface.outputs]
        outputs = [self._bind(context, spec) for spec in self._interface.outputs]
        _require(context.execute_async_v3(self._stream.handle), "could not start, see the log above")
        answers = list(zip(self._interface.outputs, outputs, shapes, strict=True))
        for spec, buffer, shape in answers:
            self._stream.to_host(buffer, _nbytes(spec, shape))
        self._stream.synchronize()
        return [np.array(buffer.view(shape, spec.dtype)) for spec, buffer, shape in answers]

    def _bind(self, context: Any, spec: TensorSpec) -> Buffer:
        buffer = self._buffers[spec.name]
        _require(context.set_tensor_address(spec.name, buffer.device), f"refuses the memory of {spec.name}")
        return buffer

    def _output_shape(self, context: Any, spec: TensorSpec, sizes: Sizes) -> Sequence[int]:
        shape = tuple(context.get_tensor_shape(spec.name))
        _require(shape == spec.shape(sizes), f"gives {spec.name} the shape {list(shape)}, not {list(spec.shape(sizes))}")
        return shape


def open_model(path: Path, config: ModelConfig, *, kind: str, device_id: int) -> TensorRtRuntime:
    """Load an engine for an instance on GPU `device_id`.

    Raises:
        ConfigError: The instance is not on a GPU, or the file was built by another TensorRT or for another
        kind of GPU.
    """
    if kind != "GPU":
        raise ConfigError(f"model '{config.name}': a TensorRT engine needs an instance on a GPU (`kind: KIND_GPU`)")
    interface = read_interface(path.parent)
    try:
        stream = Stream(device_id)
        engine = trt.Runtime(LOGGER).deserialize_cuda_engine(path.read_bytes())
        if engine is None:
            raise ConfigError(
                f"model '{config.name}': TensorRT {trt.__version__} cannot load '{path}' on this GPU, see the log: build it again here"
            )
        _check_tensors(engine, interface, config)
        return TensorRtRuntime(engine, interface, stream)
    except (OSError, CudaError, ExecutionError) as exc:
        raise ConfigError(f"model '{config.name}': '{path}' cannot be prepared: {exc}") from exc


def _check_tensors(engine: Any, interface: Interface, config: ModelConfig) -> None:
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    has = {name: np.dtype(trt.nptype(engine.get_tensor_dtype(name))) for name in names}
    expected = {spec.name: np.dtype(spec.dtype) for spec in (*interface.inputs, *interface.outputs)}
    if has != expected:
        raise ConfigError(f"model '{config.name}': the engine has the tensors {has}, its interface says {expected}: build it again")


def _open_profile(engine: Any, interface: Interface, index: int, stream: Stream) -> _Profile:
    context = engine.create_execution_context()
    _require(context is not None, "has not enough memory for an execution context")
    _require(context.set_optimization_profile_async(index, stream.handle), f"refuses its profile {index}")
    shapes = {spec.name: engine.get_tensor_profile_shape(spec.name, index) for spec in interface.inputs}
    return _Profile(context, {name: (tuple(least), tuple(greatest)) for name, (least, _, greatest) in shapes.items()})


def _nbytes(spec: TensorSpec, shape: Sequence[int]) -> int:
    return int(np.prod(shape)) * np.dtype(spec.dtype).itemsize


def _require(succeeded: bool, what: str) -> None:
    """Raise ExecutionError if a call failed: TensorRT returns False instead and logs the reason."""
    if not succeeded:
        raise ExecutionError(f"TensorRT {what}")
