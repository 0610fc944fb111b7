"""Embedded Tritons for a scenario that routes by itself, and what any embedded Triton's processes and log say: memory, loads.

`control_plane` has no part in it: these are the servers that a proxy of one's own would stand before.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from time import monotonic

from control_plane.host.memory.process_memory import held_bytes
from control_plane.models.adapters.managed_repository import ManagedRepository
from control_plane.settings import TritonSettings
from control_plane.triton.adapters.connected import UpstreamClient
from control_plane.triton.embedded import guardian
from control_plane.triton.embedded.process import EmbeddedTriton, EmbeddedTritonLauncher
from perf.fleet.report import Memory
from perf.servers.processes import PROJECT, tree

_LIVE_S = 60.0
_STOP_S = 5.0
_SAMPLE_S = 0.5
"""One sample costs some 15 ms for each Triton with four models."""
_UNLOADED = re.compile("successfully unloaded '")
_LOG_LINE = re.compile(r"""^(\S+) I .*"(?:loading: ([^:"]+):\d+|successfully loaded '([^']+)')"$""", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Started:
    """Triton that was started, with its client."""

    process: EmbeddedTriton
    upstream: UpstreamClient

    @property
    def url(self) -> str:
        """Where its HTTP frontend listens."""
        return f"http://{self.process.endpoints.http}"


@asynccontextmanager
async def tritons(count: int, models: Path, folder: Path) -> AsyncIterator[list[Started]]:
    """Start so many Tritons, each with a repository of its own that has all the models; nothing is loaded."""
    async with AsyncExitStack() as held:
        yield [await held.enter_async_context(_triton(models, folder / f"server-{number}")) for number in range(count)]


@asynccontextmanager
async def _triton(models: Path, state: Path) -> AsyncIterator[Started]:
    repository = ManagedRepository([models], state, config_name="")
    repository.place_all()
    settings = TritonSettings(cache_dir=PROJECT / ".cache", triton_transport="tcp")  # a proxy that is no part of tidegate asks it
    process = await EmbeddedTritonLauncher(settings, state).start()
    upstream = UpstreamClient(process.endpoints, max_connections=4)
    try:
        async with asyncio.timeout(_LIVE_S):
            while not await upstream.control.is_live():
                await asyncio.sleep(0.05)
        yield Started(process, upstream)
    finally:
        await upstream.close()
        await process.stop(grace_s=_STOP_S)


@dataclass(frozen=True, slots=True)
class Logged:
    """Loads and unloads of the Tritons with their state beneath one folder, as their logs have them."""

    load_s: list[float]
    """What each load took. Logs have whole seconds only; a mean of many is right nevertheless."""
    unloads: int


def logged_in(folder: Path) -> Logged:
    logs = [log.read_text(errors="replace") for log in sorted(folder.rglob("triton.log"))]
    return Logged([taken_s for log in logs for taken_s in _loads(log)], sum(len(_UNLOADED.findall(log)) for log in logs))


def _loads(log: str) -> Iterator[float]:
    began: dict[str, datetime] = {}
    for time, begun, loaded in _LOG_LINE.findall(log):
        if begun:
            began[begun] = datetime.fromisoformat(time)
        else:
            yield (datetime.fromisoformat(time) - began[loaded]).total_seconds()


@contextmanager
def watching_memory(pid: int) -> Iterator[Memory]:
    """Samples until the block ends; what it yields grows meanwhile."""
    memory, ended = Memory(), threading.Event()
    thread = threading.Thread(target=_watch, args=(pid, memory, ended), name="memory")
    thread.start()
    try:
        yield memory
    finally:
        ended.set()
        thread.join()


def _watch(pid: int, memory: Memory, ended: threading.Event) -> None:
    began_s = monotonic()
    while not ended.wait(_SAMPLE_S):
        samples = {session: held_bytes(guardian.session_members(session)) or 0 for session in triton_sessions(pid)}
        for session in samples.keys() - memory.held_bytes.keys():
            memory.held_bytes[session] = [0] * len(memory.times_s)
        memory.times_s.append(monotonic() - began_s)
        for session, known in memory.held_bytes.items():
            known.append(samples.get(session, 0))


def triton_sessions(pid: int) -> list[int]:
    """Return the session of each embedded Triton beneath a process: the guardian's, which has all of it."""
    found = []
    for each in tree(pid):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{each}/comm").read_text().strip() == "tritonserver":
                found.append(os.getsid(each))
    return sorted(set(found))
