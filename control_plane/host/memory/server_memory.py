"""Memory that the processes of a server hold: main memory, and that of GPUs where their driver tells it."""

from __future__ import annotations

from collections.abc import Iterable

from control_plane.core.held_memory import HeldMemory
from control_plane.host.memory.gpu_memory import GpuMemory
from control_plane.host.memory.process_memory import held_bytes


class ServerMemory:
    """Meter of the memory of servers' processes on this machine. It reads files and asks drivers, so call it in
    threads."""

    def __init__(self, gpus: GpuMemory | None = None) -> None:
        self._gpus = gpus or GpuMemory()

    def held(self, pids: Iterable[int]) -> HeldMemory | None:
        """Return what the processes hold together; None if none of them exists or can be read."""
        known = frozenset(pids)
        host_bytes = held_bytes(known)
        return None if host_bytes is None else HeldMemory(host_bytes, self._gpus.held_bytes(known))
