"""What each model takes by itself: loaded into a Triton that has nothing else, asked, and unloaded, one after the other."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import monotonic

import httpx

from control_plane.core.model import ModelState
from perf.fleet.clients import ask, connections, text_of
from perf.fleet.servers import Started, tritons

_CONTROL_S = 60.0
_POLL_S = 0.02
_REQUESTS = 40
_AT_A_TIME = 16
"""As many as make the largest batch: what that needs it keeps."""
_SEED = 22


@dataclass(frozen=True, slots=True)
class Alone:
    """Measurements of one model that has a Triton to itself."""

    resident_bytes: int
    """After requests, which take their part; with its stub."""
    load_s: float
    unload_s: float
    """Until the memory is free."""
    service_s: float
    """Mean service time of one request; the way there and back is in it."""


@dataclass(frozen=True, slots=True)
class AllAlone:
    models: dict[str, Alone]
    kept_bytes: int
    """What Triton itself holds more when it has had them all than when it was new."""


def measure(folder: Path, names: Iterable[str]) -> AllAlone:
    with tempfile.TemporaryDirectory(prefix="tidegate-perf-") as state:
        return asyncio.run(_measure(folder, names, Path(state)))


async def _measure(folder: Path, names: Iterable[str], state: Path) -> AllAlone:
    async with tritons(1, folder, state) as (triton,), connections() as session:
        new_bytes = host_bytes(triton)
        models = {name: await measure_one(triton, name, session) for name in names}
        return AllAlone(models, max(0, host_bytes(triton) - new_bytes))


def host_bytes(triton: Started) -> int:
    held = triton.process.held_memory()
    return 0 if held is None else held.host_bytes


async def measure_one(triton: Started, name: str, session: httpx.AsyncClient) -> Alone:
    """Measure one model, which is not loaded before and not afterwards either."""
    control, random = triton.upstream.control, Random(_SEED)
    before_bytes = host_bytes(triton)
    began_s = monotonic()
    await control.load(name, timeout_s=_CONTROL_S)
    load_s = monotonic() - began_s
    async with asyncio.TaskGroup() as tasks:
        for _ in range(4 * _AT_A_TIME):
            tasks.create_task(_ask(session, triton.url, name, random))
    began_s = monotonic()
    for _ in range(_REQUESTS):
        await _ask(session, triton.url, name, random)
    service_s = (monotonic() - began_s) / _REQUESTS
    held_bytes = host_bytes(triton) - before_bytes
    began_s = monotonic()
    await control.unload(name, timeout_s=_CONTROL_S)
    async with asyncio.timeout(_CONTROL_S):
        while any(line.state is not ModelState.UNAVAILABLE for line in await control.index() if line.name == name):
            await asyncio.sleep(_POLL_S)
    return Alone(held_bytes, load_s, monotonic() - began_s, service_s)


async def _ask(session: httpx.AsyncClient, url: str, name: str, random: Random) -> None:
    if wrong := await ask(session, url, name, text_of(random)):
        raise RuntimeError(f"{name}: {wrong}")
