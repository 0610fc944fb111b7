"""Requests, kills, failures, unloads, fetches and cancellations in random order: memory is never promised
twice, and nothing leaks.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.core.errors import ControlPlaneError, Overloaded, StoreUnavailable, UpstreamUnavailable
from tests.aio import run_in_virtual_time
from tests.unit.fleet.fleet_bench import READY, FleetBench, model, running
from tests.unit.fleet.routing.model_router.bench import FAILS


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**32))
def test_the_budget_holds_and_every_place_is_given_back(seed: int) -> None:
    run_in_virtual_time(_any_order(seed))


async def _any_order(seed: int) -> None:
    draw = random.Random(seed)
    bench = FleetBench(*(model(f"m{number}", draw.choice((20, 30, 45, 60))) for number in range(6)), servers=2)
    bench.described.cold, bench.tiers.fetch_s = {"m0", "m1", "m2"}, draw.choice((0.1, 2.0))
    await bench.files.describe()
    for triton in bench.tritons.values():
        triton.load_s |= {f"m{number}": draw.choice((0.05, 0.5, 3.0)) for number in range(6)}
        triton.drain_s = draw.choice((0.01, 0.5))
    async with running(bench, reconciles=True):
        async with asyncio.TaskGroup() as tasks:
            requests = []
            for number in range(120):
                requests.append(tasks.create_task(_is_served(bench, draw)))
                await asyncio.sleep(draw.choice((0.0, 0.01, 0.3)))
                if number % 15 == 14:
                    await _ignoring(lambda: _disturb(bench, draw))
        assert any(request.result() for request in requests)
        await _recovers(bench)


async def _is_served(bench: FleetBench, draw: random.Random) -> bool:
    """Whether a request of a client with more or less patience is served."""
    try:
        async with asyncio.timeout(draw.choice((0.3, 5.0, 100.0))):
            await bench.use(f"m{draw.randrange(6)}", draw.choice((0.1, 3.0, 30.0)), for_s=draw.choice((0.0, 0.01, 1.0)))
    except (Overloaded, UpstreamUnavailable, TimeoutError):
        return False
    return True


async def _disturb(bench: FleetBench, draw: random.Random) -> None:
    name, what = draw.choice(("s0", "s1")), draw.randrange(8)
    if what == 0:
        bench.kill(name)
        await asyncio.sleep(draw.choice((0.1, 2.0)))
        bench.bring_up(name)
    elif what == 1:
        bench.tritons[name].failures[f"m{draw.randrange(6)}"] = FAILS
    elif what == 2:
        bench.tritons[name].failures.clear()
    elif what == 3:
        bench.described.cold |= {each for each in bench.described.models if each not in bench.state.fleet.holders}
        await bench.files.describe()
    elif what == 4:
        bench.tiers.failures[f"m{draw.randrange(3)}"] = StoreUnavailable("the store is away")
    elif what == 5:
        bench.server(name).budget_bytes = draw.choice((70, 100))
    elif what == 6:
        _kill_stub(bench, draw, name)
    elif bench.router.ready():
        try:
            await bench.models.unload(gone := draw.choice(sorted(bench.router.ready())))
        finally:  # also where it cannot be unloaded, since its stub has died
            await bench.remembering.wish(gone, None)


def _kill_stub(bench: FleetBench, draw: random.Random, server: str) -> None:
    """Kill the stub of a model that is ready there; requests find that out."""
    there = [each for each, state in bench.tritons[server].states.items() if state is READY]
    if there:
        bench.tritons[server].dead.add(gone := draw.choice(there))
        for _ in range(3):
            if (claim := bench.state.reserve(gone, server)) is not None:
                claim.release(answered=False)
                bench.router.note_dead_stub(claim, gone)


async def _recovers(bench: FleetBench) -> None:
    """Once nothing fails any more, every model is served, and nothing is left of what was under way."""
    bench.tiers.failures.clear()
    for server in bench.state.fleet.servers.values():
        server.budget_bytes = 100
    for triton in bench.tritons.values():
        triton.failures.clear()
    await asyncio.sleep(400)  # as long as the longest quarantine
    for name in bench.described.models:
        bench.state.measurements.forgive(name)
        assert await bench.use(name) in ("s0", "s1")
    for server in bench.state.fleet.servers.values():
        assert server.work_s == pytest.approx(0.0, abs=1e-9)
        assert all(replica.in_flight == 0 for replica in server.replicas.values())
        assert server.held_bytes <= server.budget_bytes


async def _ignoring(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    try:
        await work()
    except ControlPlaneError:
        return
