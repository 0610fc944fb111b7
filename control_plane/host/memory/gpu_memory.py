"""GPU memory that processes hold, read from NVIDIA's driver (NVML) by nvidia-ml-py, which `tidegate[nvml]` installs.

A library call into a broken driver may never return, so each reading is a thread's that nobody waits for longer
than a second. What NVML says: https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html
"""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)

_DRIVER = Path("/dev/nvidiactl")
"""There wherever a process may use a GPU, also in containers that have only one of several, or a slice of one."""
_TIMEOUT_S = 1.0
_NOT_INSTALLED = "nvidia-ml-py is not installed"
_NO_ANSWER = "NVIDIA's driver does not answer"

Nvml = Any
"""The module `pynvml`, which has no types."""


class GpuMemoryUnknown(Exception):
    """The GPU memory of processes cannot be read; the message says why."""


def load_pynvml() -> Nvml:
    """Import nvidia-ml-py. Raises GpuMemoryUnknown."""
    try:
        return importlib.import_module("pynvml")
    except ImportError as exc:
        raise GpuMemoryUnknown(_NOT_INSTALLED) from exc


class GpuMemory:
    """Reader of the memory that processes hold on all GPUs of this machine; any thread may call it."""

    def __init__(
        self,
        *,
        load: Callable[[], Nvml] = load_pynvml,
        driver: Path = _DRIVER,
        proc: Path = Path("/proc"),
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        self._load = load
        self._driver = driver
        self._proc = proc
        self._timeout_s = timeout_s
        self._nvml: Nvml = None
        """The initialised library; None before, and after it has failed."""
        self._one_at_a_time = threading.Lock()
        self._reading: threading.Thread | None = None
        self._said = ""
        """Why the latest reading failed, so that it is logged once."""

    @property
    def has_driver(self) -> bool:
        """Whether this machine has a driver to ask."""
        return self._driver.exists()

    def held_bytes(self, pids: Collection[int]) -> int | None:
        """Return the GPU memory that the processes hold together; None where it cannot be read."""
        if not self.has_driver:
            return None
        try:
            found = self.read(pids)
        except GpuMemoryUnknown as exc:
            if self._said != str(exc):
                self._said = str(exc)
                _log.warning("GPU memory cannot be read, so models are weighed by main memory or by what Triton reports: %s", exc)
            return None
        self._said = ""
        return found

    def read(self, pids: Collection[int]) -> int:
        """Return what `held_bytes` returns. Raises GpuMemoryUnknown."""
        found: list[int | GpuMemoryUnknown] = []

        def look() -> None:
            try:
                found.append(self._look(pids))
            except GpuMemoryUnknown as exc:
                found.append(exc)
            except Exception as exc:  # the root of a thread, in a library that is not ours
                found.append(GpuMemoryUnknown(f"nvidia-ml-py failed: {exc!r}"))

        with self._one_at_a_time:
            if self._reading is not None and self._reading.is_alive():
                raise GpuMemoryUnknown(_NO_ANSWER)
            self._reading = threading.Thread(target=look, name="nvml", daemon=True)
            self._reading.start()
            self._reading.join(self._timeout_s)
            match found:
                case [int(held)]:
                    return held
                case [GpuMemoryUnknown() as exc]:
                    raise exc
            raise GpuMemoryUnknown(_NO_ANSWER)

    def _look(self, pids: Collection[int]) -> int:
        nvml = self._load() if self._nvml is None else self._nvml
        try:
            if self._nvml is None:
                nvml.nvmlInit()
                self._nvml = nvml
            return sum(self._held_on(nvml, device, pids) for device in _devices(nvml))
        except nvml.NVMLError as exc:
            self._nvml = None  # initialised anew next time: the driver may have been replaced
            with suppress(nvml.NVMLError):
                nvml.nvmlShutdown()
            raise GpuMemoryUnknown(f"{_NO_VALUES} ({exc})" if isinstance(exc, nvml.NVMLError_NotSupported) else str(exc)) from exc

    def _held_on(self, nvml: Nvml, device: Any, pids: Collection[int]) -> int:
        held: dict[int, int | None] = {}
        for process in _processes(nvml, device):
            # Under MPS a process may be in both lists; pid 0 stands for one that this container does not see.
            held[process.pid] = max(held.get(process.pid) or 0, process.usedGpuMemory) if process.usedGpuMemory is not None else None
        held.pop(0, None)
        # Older drivers number processes as the host does, where we may be in a container: then any could be ours.
        if any(not (self._proc / str(pid)).exists() for pid in held):
            raise GpuMemoryUnknown("the driver names processes that are not seen here: they are of another process namespace")
        ours = [held[pid] for pid in set(pids) & held.keys()]
        if None in ours:
            raise GpuMemoryUnknown(_NO_VALUES)
        return sum(filter(None, ours))


_NO_VALUES = "the driver does not say how much each process holds, as with vGPUs and some MIG slices"


def _devices(nvml: Nvml) -> Iterator[Any]:
    """Yield the handles of all GPUs, and of a partitioned one those of its MIG slices."""
    for index in range(nvml.nvmlDeviceGetCount()):
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        if not _is_partitioned(nvml, gpu):
            yield gpu
            continue
        for slot in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
            with suppress(nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):  # no slice there
                yield nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, slot)


def _is_partitioned(nvml: Nvml, gpu: Any) -> bool:
    try:
        current, _pending = nvml.nvmlDeviceGetMigMode(gpu)
    except nvml.NVMLError_NotSupported:
        return False
    return bool(current == nvml.NVML_DEVICE_MIG_ENABLE)


def _processes(nvml: Nvml, device: Any) -> Iterator[Any]:
    yield from nvml.nvmlDeviceGetComputeRunningProcesses(device)
    with suppress(nvml.NVMLError_NotSupported, nvml.NVMLLibraryMismatchError):  # no MPS, or an older driver
        yield from nvml.nvmlDeviceGetMPSComputeRunningProcesses(device)
