"""TensorRT 10 and the CUDA runtime as far as this project calls them, on ordinary memory: names, arguments
and answers as documented.

The engine answers EMBEDDING [batch, 2] = the sum of INPUT_IDS where ATTENTION_MASK is 1, and the length; its
"plan" is JSON. Where the real ones say no, so do these: shapes beyond a profile, memory that is not bound, a
device not selected in this thread, copies the wrong way.
"""

# ruff: noqa: N801, N802, N815  (CUDA's own spelling)

from __future__ import annotations

import ctypes
import enum
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

VERSION = "10.3.0"
INPUTS = ("INPUT_IDS", "ATTENTION_MASK")
NAMES = (*INPUTS, "EMBEDDING")


class DataType(enum.Enum):
    INT64 = np.int64
    FLOAT = np.float32
    BF16 = None


class BuilderFlag(enum.Enum):
    FP16 = 0
    BF16 = 1


class Cuda:
    """`cuda.bindings.runtime`: every function answers (error, ...); one that is named in `failing` fails."""

    class cudaError_t(enum.IntEnum):
        cudaSuccess = 0
        cudaErrorMemoryAllocation = 2

    class cudaMemcpyKind(enum.IntEnum):
        cudaMemcpyHostToDevice = 1
        cudaMemcpyDeviceToHost = 2

    def __init__(self) -> None:
        self.memory: dict[int, tuple[str, Any]] = {}
        self.streams: set[int] = set()
        self.failing: set[str] = set()
        self._thread = threading.local()

    def cudaSetDevice(self, device: int) -> tuple[Any]:
        self._thread.device = device
        return (self.cudaError_t.cudaSuccess,)

    def cudaStreamCreate(self) -> tuple[Any, ...]:
        self.streams.add(7)
        return self._answer("cudaStreamCreate", 7)

    def cudaStreamDestroy(self, stream: int) -> tuple[Any, ...]:
        self.streams.remove(stream)
        return self._answer("cudaStreamDestroy")

    def cudaStreamSynchronize(self, stream: int) -> tuple[Any, ...]:
        assert stream in self.streams
        return self._answer("cudaStreamSynchronize")

    def cudaMallocHost(self, nbytes: int) -> tuple[Any, ...]:
        return self._answer("cudaMallocHost", self._allocate("host", nbytes))

    def cudaMalloc(self, nbytes: int) -> tuple[Any, ...]:
        return self._answer("cudaMalloc", self._allocate("device", nbytes))

    def cudaFreeHost(self, address: int) -> tuple[Any, ...]:
        assert self.memory.pop(address)[0] == "host"
        return self._answer("cudaFreeHost")

    def cudaFree(self, address: int) -> tuple[Any, ...]:
        assert self.memory.pop(address)[0] == "device"
        return self._answer("cudaFree")

    def cudaMemcpyAsync(self, target: int, source: int, nbytes: int, kind: Any, stream: int) -> tuple[Any, ...]:
        sides = ("device", "host") if kind == self.cudaMemcpyKind.cudaMemcpyHostToDevice else ("host", "device")
        assert (self.memory[target][0], self.memory[source][0]) == sides
        assert stream in self.streams
        assert nbytes <= min(len(self.memory[target][1]), len(self.memory[source][1]))
        ctypes.memmove(target, source, nbytes)
        return self._answer("cudaMemcpyAsync")

    def cudaGetErrorString(self, error: Any) -> tuple[Any, bytes]:
        return self.cudaError_t.cudaSuccess, b"out of memory"

    def _allocate(self, side: str, nbytes: int) -> int:
        buffer = (ctypes.c_byte * nbytes)()
        self.memory[ctypes.addressof(buffer)] = (side, buffer)
        return ctypes.addressof(buffer)

    def _answer(self, name: str, *values: Any) -> tuple[Any, ...]:
        assert hasattr(self._thread, "device"), "no device selected in this thread"
        return (self.cudaError_t.cudaErrorMemoryAllocation if name in self.failing else self.cudaError_t.cudaSuccess, *values)


class Context:
    """Fake of TensorRT's `IExecutionContext`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._profile: int | None = None
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        assert stream_handle == 7
        self._profile = profile_index
        return profile_index < self._engine.num_optimization_profiles

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        assert self._profile is not None
        least, _, most = self._engine.get_tensor_profile_shape(name, self._profile)
        self._shapes[name] = tuple(shape)
        return all(low <= size <= high for low, size, high in zip(least, shape, most, strict=True))

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return (self._shapes["INPUT_IDS"][0], self._engine.plan.get("width", 2)) if name == "EMBEDDING" else self._shapes[name]

    def set_tensor_address(self, name: str, memory: int) -> bool:
        assert name in NAMES
        self._addresses[name] = memory
        return True

    def execute_async_v3(self, stream_handle: int) -> bool:
        if set(self._addresses) != set(NAMES) or self._engine.plan.get("broken"):
            return False
        ids, mask = (self._read(name) for name in INPUTS)
        answer = np.stack([(ids * mask).sum(axis=1), np.full(len(ids), ids.shape[1])], axis=1).astype(np.float32)
        ctypes.memmove(self._addresses["EMBEDDING"], answer.ctypes.data, answer.nbytes)
        self._engine.profiles_used.append(self._profile)
        return True

    def _read(self, name: str) -> Any:
        shape = self._shapes[name]
        memory = (ctypes.c_int64 * int(np.prod(shape))).from_address(self._addresses[name])
        return np.array(memory).reshape(shape)


class Engine:
    """Fake of TensorRT's `ICudaEngine`."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.num_optimization_profiles = len(plan["profiles"])
        self.num_io_tensors = len(NAMES)
        self.profiles_used: list[int | None] = []

    def get_tensor_name(self, index: int) -> str:
        return NAMES[index]

    def get_tensor_dtype(self, name: str) -> DataType:
        return DataType.INT64 if name in INPUTS else DataType[self.plan.get("output_type", "FLOAT")]

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[Any]:
        return [tuple(shape) for shape in self.plan["profiles"][profile_index][name]]

    def create_execution_context(self) -> Context | None:
        return None if self.plan.get("too_large") else Context(self)


class OptimizationProfile:
    """Fake of TensorRT's `IOptimizationProfile`."""

    def __init__(self) -> None:
        self.shapes: dict[str, list[Any]] = {}

    def set_shape(self, name: str, least: Any, best: Any, most: Any) -> None:
        self.shapes[name] = [least, best, most]


class BuilderConfig:
    """Fake of TensorRT's `IBuilderConfig`."""

    def __init__(self) -> None:
        self.flags: list[str] = []
        self.profiles: list[dict[str, list[Any]]] = []
        self.workspace_bytes = 0

    def set_memory_pool_limit(self, pool: str, pool_size: int) -> None:
        assert pool == "workspace"
        self.workspace_bytes = pool_size

    def set_flag(self, flag: BuilderFlag) -> None:
        self.flags.append(flag.name)

    def add_optimization_profile(self, profile: OptimizationProfile) -> int:
        ordered = all(a <= b <= c for least, best, most in profile.shapes.values() for a, b, c in zip(least, best, most, strict=True))
        self.profiles.append(profile.shapes)
        return len(self.profiles) - 1 if ordered else -1


class Parser:
    """Fake of TensorRT's `OnnxParser`; a file that begins with "bad" does not parse."""

    def __init__(self, network: dict[str, bytes], logger: object) -> None:
        self._network = network
        self.num_errors = 0

    def parse(self, model: bytes) -> bool:
        self._network["onnx"] = model
        self.num_errors = 2 if model.startswith(b"bad") else 0
        return not self.num_errors

    def get_error(self, index: int) -> str:
        return f"error {index}"


class Builder:
    """Fake of TensorRT's `Builder`; it cannot build what ends in "unbuildable"."""

    def __init__(self, logger: object) -> None:
        pass

    def create_network(self, flags: int) -> dict[str, bytes]:
        assert flags == 0
        return {}

    def create_builder_config(self) -> BuilderConfig:
        return BuilderConfig()

    def create_optimization_profile(self) -> OptimizationProfile:
        return OptimizationProfile()

    def build_serialized_network(self, network: dict[str, bytes], config: BuilderConfig) -> memoryview | None:
        if network["onnx"].endswith(b"unbuildable"):
            return None
        assert config.workspace_bytes > 0
        return memoryview(json.dumps({"version": VERSION, "profiles": config.profiles, "flags": config.flags}).encode())


def nptype(data_type: DataType) -> Any:
    if data_type.value is None:
        raise TypeError("Could not resolve TensorRT datatype to an equivalent numpy datatype.")
    return data_type.value


class Logger:
    WARNING = 2

    def __init__(self, severity: int) -> None:
        assert severity == self.WARNING


@contextmanager
def installed(*, with_cuda: bool = True) -> Iterator[Cuda]:
    """`import tensorrt` and `from cuda.bindings import runtime` find these; what was imported on top of them
    is forgotten afterwards.
    """
    cuda, engines = Cuda(), []

    def deserialize(plan: bytes) -> Engine | None:
        document = json.loads(plan) if plan.startswith(b"{") else {}
        engines.append(Engine(document) if document.get("version") == VERSION else None)
        return engines[-1]

    modules: dict[str, Any] = {"tensorrt": ModuleType("tensorrt")}
    modules["tensorrt"].__dict__.update(
        __version__=VERSION,
        Logger=Logger,
        Runtime=lambda logger: SimpleNamespace(deserialize_cuda_engine=deserialize),
        Builder=Builder,
        OnnxParser=Parser,
        BuilderFlag=BuilderFlag,
        MemoryPoolType=SimpleNamespace(WORKSPACE="workspace"),
        nptype=nptype,
        engines=engines,
    )
    if with_cuda:
        modules |= {"cuda": ModuleType("cuda"), "cuda.bindings": ModuleType("cuda.bindings")}
        modules["cuda.bindings"].__dict__["runtime"] = cuda
    for name, module in modules.items():
        module.__spec__ = ModuleSpec(name, None)
    before = dict(sys.modules)
    sys.modules.update(modules)
    try:
        yield cuda
    finally:
        for name in set(sys.modules) - set(before):
            if name in modules or name.endswith("tensorrt_runtime"):
                del sys.modules[name]
