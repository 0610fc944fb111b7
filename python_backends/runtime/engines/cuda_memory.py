"""The part of the CUDA runtime that a caller of TensorRT needs: a stream, and memory on host and device.

It uses cuda-python (`cuda.bindings`, 12.6 or newer), which has a few megabytes; PyTorch would bring gigabytes
for the same calls.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from python_backends.runtime.errors import ConfigError
from python_backends.runtime.execution import Array


class CudaError(Exception):
    """A call of the CUDA runtime failed; the text is CUDA's."""


class Stream:
    """CUDA stream on one device, with its memory copies. Not thread-safe."""

    def __init__(self, device_id: int) -> None:
        try:
            from cuda.bindings import runtime as cudart
        except ImportError as exc:
            raise ConfigError("TensorRT needs the Python package cuda-python (12.6 or newer) as well") from exc
        self._cudart, self._device_id = cudart, device_id
        self.select_device()
        self._stream = self._call(cudart.cudaStreamCreate())

    @property
    def handle(self) -> int:
        """Address of the stream, as TensorRT expects it."""
        return int(self._stream)

    def select_device(self) -> None:
        """Make this device the current one of the calling thread; CUDA has a current device per thread."""
        self._call(self._cudart.cudaSetDevice(self._device_id))

    def buffer(self, nbytes: int) -> Buffer:
        """Allocate memory of this size, pinned on the host, and on the device."""
        host, device = self._call(self._cudart.cudaMallocHost(nbytes)), self._call(self._cudart.cudaMalloc(nbytes))
        return Buffer(int(host), int(device), nbytes)

    def to_device(self, buffer: Buffer, array: Array) -> None:
        """Copy an array to the device through the buffer's host memory."""
        view = buffer.view(array.shape, array.dtype)
        view[...] = array
        self._copy(buffer.device, buffer.host, view.nbytes, "cudaMemcpyHostToDevice")

    def to_host(self, buffer: Buffer, nbytes: int) -> None:
        """Start copying the first bytes to the host; they have arrived after `synchronize`."""
        self._copy(buffer.host, buffer.device, nbytes, "cudaMemcpyDeviceToHost")

    def synchronize(self) -> None:
        """Wait until all work on the stream is done."""
        self._call(self._cudart.cudaStreamSynchronize(self._stream))

    def free(self, buffer: Buffer) -> None:
        """Free the buffer's memory on host and device."""
        self._call(self._cudart.cudaFreeHost(buffer.host))
        self._call(self._cudart.cudaFree(buffer.device))

    def close(self) -> None:
        """Destroy the stream."""
        self._call(self._cudart.cudaStreamDestroy(self._stream))

    def _copy(self, target: int, source: int, nbytes: int, kind: str) -> None:
        self._call(self._cudart.cudaMemcpyAsync(target, source, nbytes, getattr(self._cudart.cudaMemcpyKind, kind), self._stream))

    def _call(self, result: tuple[Any, ...]) -> Any:
        # Every call of cuda-python returns (error, ...results).
        error, *values = result
        if error != self._cudart.cudaError_t.cudaSuccess:
            _, text = self._cudart.cudaGetErrorString(error)
            raise CudaError(f"CUDA error {int(error)}: {text.decode()}")
        return values[0] if values else None


class Buffer:
    """A pair of equally large memory blocks, one on the host and one on the device."""

    def __init__(self, host: int, device: int, nbytes: int) -> None:
        self.host, self.device, self.nbytes = host, device, nbytes

    def view(self, shape: Sequence[int], dtype: Any) -> Array:
        """Return the host memory as an array, without a copy."""
        memory = (ctypes.c_byte * self.nbytes).from_address(self.host)
        array: Array = np.frombuffer(memoryview(memory), dtype=np.dtype(dtype), count=int(np.prod(shape))).reshape(shape)
        return array
