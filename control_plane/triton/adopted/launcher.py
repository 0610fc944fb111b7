"""Launcher of an adopted Triton: waits until it is there, and holds on to it until it ends.

It never starts, stops or signals that Triton itself. To `triton/supervisor` it looks like an embedded one: a
Triton that closes the held connection has ended, and what answers next is another process.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

from control_plane.core.endpoints import Address, Endpoints
from control_plane.core.errors import StartupError
from control_plane.core.held_memory import HeldMemory
from control_plane.host.memory.server_memory import ServerMemory
from control_plane.triton.adapters.grpc.held_connection import HeldConnection
from control_plane.triton.adopted.processes import ProcessesUnseen, TritonProcesses, find_triton
from control_plane.triton.embedded.watchdogs.load_watch import AbandonedLoadAnswerer, LoadWatch
from control_plane.triton.embedded.watchdogs.stub_watch import StubWatch
from control_plane.triton.embedded.watchdogs.stubs import Stubs
from control_plane.triton.embedded.watchdogs.watched import WatchedTriton, Watches

_log = logging.getLogger(__name__)

_POLL_S = 0.25
_CONNECT_TIMEOUT_S = 2.0
_NO_GUARDIAN = -1


class AdoptedTritonLauncher(WatchedTriton):
    """Launcher for the Triton at these endpoints, which loads from `repository`."""

    again = "attached to again"

    def __init__(self, endpoints: Endpoints, repository: Path, *, start_timeout_s: float, memory: ServerMemory | None = None) -> None:
        """`memory` weighs Triton's processes."""
        super().__init__()
        self._memory = memory or ServerMemory()
        self._endpoints = endpoints
        self._repository = repository
        self._start_timeout_s = start_timeout_s
        self._said = ""
        """Why processes were not seen at the latest start, so that it is logged once."""

    async def start(self) -> AdoptedTriton:
        """Wait until the Triton accepts connections; it is not live yet when this returns.

        Raises StartupError: it was not there within the start timeout, or its repository cannot be made.
        """
        try:
            # Triton itself does not start without the folder.
            self._repository.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise StartupError(f"{self._repository} cannot be made: {exc.strerror}") from exc
        held = await self._connected()
        processes = await self._find_processes()
        self.watches = None if processes is None else _watches(processes)
        return AdoptedTriton(self._endpoints, held, processes, self._memory)

    async def _connected(self) -> HeldConnection:
        place, is_waiting = self._endpoints.grpc, False
        try:
            async with asyncio.timeout(self._start_timeout_s):
                while (held := await _try_to_connect(place)) is None:
                    if not is_waiting:
                        _log.info("waiting for Triton at %s, for at most %g s (TIDEGATE_START_TIMEOUT_S)", place, self._start_timeout_s)
                        is_waiting = True
                    await asyncio.sleep(_POLL_S)
                return held
        except TimeoutError:
            raise StartupError(
                f"no Triton accepted connections at {place} (--attach) within {self._start_timeout_s:g} s (TIDEGATE_START_TIMEOUT_S); "
                "is it running there?"
            ) from None

    async def _find_processes(self) -> TritonProcesses | None:
        try:
            found = await asyncio.to_thread(find_triton, self._repository)
        except ProcessesUnseen as exc:
            if self._said != str(exc):
                self._said = str(exc)
                _log.warning(
                    "Triton's Python processes are not watched, so ones that die or hang are not replaced, and memory is not measured: %s",
                    exc,
                )
            return None
        self._said = ""
        return found


async def _try_to_connect(place: Address) -> HeldConnection | None:
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            return await HeldConnection.open(place)
    except OSError:  # TimeoutError is one too
        return None


class AdoptedTriton:
    """Life of an adopted Triton, from a connection to its loss."""

    def __init__(self, endpoints: Endpoints, held: HeldConnection, processes: TritonProcesses | None, memory: ServerMemory) -> None:
        self._endpoints = endpoints
        self._held = held
        self._processes = processes
        self._memory = memory

    @property
    def endpoints(self) -> Endpoints:
        return self._endpoints

    async def wait(self) -> str:
        """Wait until it has ended; return how."""
        await self._held.lost()
        return f"Triton at {self._endpoints.grpc} has closed its connections; its log is where it was started"

    def held_memory(self) -> HeldMemory | None:
        return None if self._processes is None or self._held.is_lost else self._memory.held(self._processes.all())

    def work_done(self) -> None:
        """Nothing is known: it cannot be ended from here either."""

    async def stop(self, *, grace_s: float) -> None:
        """Let go of it; it runs on."""
        self._held.close()


class _NoLog:
    """Log of a Triton whose output goes elsewhere."""

    def end(self) -> int:
        return 0

    def since(self, position: int) -> bytes:
        return b""


def _watches(processes: TritonProcesses) -> Watches:
    stubs = Stubs(_NO_GUARDIAN, processes.shm_prefix, folder=processes.shared_memory, triton=processes.pid)
    answer = AbandonedLoadAnswerer({"PATH": os.environ.get("PATH", os.defpath)}, folder=processes.shared_memory)
    loads = LoadWatch(_NoLog(), stubs, answer)
    return Watches(loads, StubWatch(stubs, loads))
