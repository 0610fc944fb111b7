"""Scripted `pynvml`: what a driver says of its GPUs, with nvidia-ml-py's own errors and the same signatures."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml


@dataclass
class FakeGpu:
    """One GPU, or one MIG slice of one. `compute` and `mps` have pid -> bytes, or the error that asking raises."""

    compute: dict[int, int | None] | type[Exception] = field(default_factory=dict)
    mps: dict[int, int | None] | type[Exception] = field(default_factory=dict)
    slices: dict[int, FakeGpu] | None = None
    """MIG slices of this GPU by slot number; None for a GPU that is not partitioned."""
    knows_mig: bool = True


class FakeNvml:
    """The functions of `pynvml` that are used."""

    NVML_DEVICE_MIG_ENABLE = pynvml.NVML_DEVICE_MIG_ENABLE

    def __init__(self, *gpus: FakeGpu) -> None:
        self.gpus = list(gpus)
        self.failure: Exception | None = None
        """Raised by each call but the shutdown."""
        self.goes_on = threading.Event()
        """Cleared: calls do not return."""
        self.goes_on.set()
        self.inits = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("NVMLError", "NVMLLibrary")):
            return getattr(pynvml, name)
        raise AttributeError(name)

    def nvmlInit(self) -> None:  # noqa: N802
        self._reach()
        self.inits += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        if self.inits == 0:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        self._reach()
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:  # noqa: N802
        self._reach()
        return self.gpus[index]

    def nvmlDeviceGetMigMode(self, device: FakeGpu) -> list[int]:  # noqa: N802
        self._reach()
        if not device.knows_mig:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [int(device.slices is not None), 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, device: FakeGpu) -> int:  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: FakeGpu, index: int) -> FakeGpu:  # noqa: N802
        if device.slices is None or index not in device.slices:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return device.slices[index]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: FakeGpu) -> list[SimpleNamespace]:  # noqa: N802
        self._reach()
        return _processes(handle.compute)

    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle: FakeGpu) -> list[SimpleNamespace]:  # noqa: N802
        self._reach()
        return _processes(handle.mps)

    def _reach(self) -> None:
        self.goes_on.wait()
        if self.failure is not None:
            raise self.failure


def _processes(script: dict[int, int | None] | type[Exception]) -> list[SimpleNamespace]:
    if isinstance(script, dict):
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in script.items()]
    raise script(pynvml.NVML_ERROR_NOT_SUPPORTED)
