"""Requests to models that are ready on several servers, which are sent again after a fault."""

from __future__ import annotations

from typing import Any

from control_plane.fleet.routing.dispatch import FleetDispatcher
from control_plane.protocols.http1 import make_answer
from tests.unit.fleet.fleet_bench import READY, FleetBench, call
from tests.unit.fleet.routing.dispatch_bench import Request
from tests.unit.fleet.routing.faults.losses_bench import repeatable

OK = make_answer(200, b"")


async def send(
    bench: FleetBench, request: Request, *, is_repeatable: bool = True, timeout_s: float = 30.0, dispatch: FleetDispatcher | None = None
) -> Any:
    asked = repeatable(is_repeatable)
    return await (dispatch or bench.dispatch).send(request, call("a"), timeout_s=timeout_s, running=asked)  # type: ignore[arg-type]


async def ready_everywhere(bench: FleetBench) -> None:
    for name, triton in bench.tritons.items():
        triton.states["a"] = READY
        await bench.loads[name].poll_index()
