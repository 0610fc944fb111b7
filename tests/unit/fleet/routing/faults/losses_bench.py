"""Losses of requests at two servers, and requests that may be repeated after them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from control_plane.core.errors import UpstreamUnavailable
from control_plane.core.infer_call import Frontend
from control_plane.objects.domain.route import HedgingPolicy
from control_plane.protocols.http1 import make_answer
from tests.unit.fleet.fleet_bench import READY, FleetBench


async def both_ready(bench: FleetBench) -> None:
    for name, triton in bench.tritons.items():
        triton.states["a"] = READY
        await bench.loads[name].poll_index()


NOT_SENT = UpstreamUnavailable("cannot connect", is_not_sent=True)
BROKE_OFF = UpstreamUnavailable("Triton closed the connection before it answered")


def repeatable(running: bool) -> Any:
    return SimpleNamespace(
        is_repeatable=running, rows=1, units=None, expected_units=1.0, priority=0, sent_s=None, sent=lambda server: None,
        permit=SimpleNamespace(forsake=lambda: None, enter_room=None, is_interrupted=False), frontend=Frontend.HTTP,
        hedging=HedgingPolicy(), note_death=lambda: None,
    )  # fmt: skip


DEAD = make_answer(500, b'{"error":"Stub process \'a_0_0\' is not healthy."}')
