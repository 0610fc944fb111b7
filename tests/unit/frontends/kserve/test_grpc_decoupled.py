"""What a ModelStreamInfer call holds of the requests that it has sent to a decoupled model."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from control_plane.frontends.kserve.grpc_decoupled import _Called
from control_plane.inference.retries.queries_of_death import STREAM_SUSPECT_S, QueriesOfDeath
from control_plane.protocols.grpc import GrpcHead
from tests.fakes import FakeGrpcStream
from tests.unit.fleet.fleet_bench import call

pytestmark = pytest.mark.virtual_time


def _asked(size_bytes: int = 9) -> Any:
    return SimpleNamespace(
        size_bytes=size_bytes, message=SimpleNamespace(frame=b"\0" * 9), call=call("m"), running=SimpleNamespace(server="s0"), suspect=None
    )


async def test_small_requests_are_held_while_they_are_suspect_and_no_longer() -> None:
    called = _Called(FakeGrpcStream(GrpcHead("")), 30.0, QueriesOfDeath(now_s=asyncio.get_running_loop().time))
    called.sends(_asked(1 << 20))
    assert not called.latest
    for _ in range(40):
        called.sends(_asked())
    assert len(called.latest) == 16
    await asyncio.sleep(STREAM_SUSPECT_S / 2)
    called.sends(_asked())
    await asyncio.sleep(STREAM_SUSPECT_S / 2 + 0.1)
    assert len(called.latest) == 1
    await asyncio.sleep(STREAM_SUSPECT_S / 2)
    assert not called.latest
    assert called.forgets is None
    called.sends(_asked())
    assert len(called.latest) == 1
