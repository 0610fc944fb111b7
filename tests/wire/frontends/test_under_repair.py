"""What is asked about the model of an only server while it is loaded anew: whether it is ready is said at once, the rest waits."""

from __future__ import annotations

import asyncio

import pytest
from tritonclient.grpc import service_pb2

from control_plane.frontends.kserve.grpc import SERVICE
from tests.wire.gateway import gateway
from tests.wire.grpc_frontend import frontend
from tests.wire.services import Services

MESSAGE = service_pb2.ModelReadyRequest(name="m").SerializeToString()
"""A request about a model; those of all these calls begin with its name."""


def repaired(it: Services, *, is_over: bool = False) -> None:
    """Have the model loaded anew, which is expected to take five seconds."""
    it.servers.under_repair.show({} if is_over else {"m": asyncio.get_running_loop().time() + 5.0})


@pytest.mark.parametrize("asked", [b"/ready", b"/stats"])
async def test_over_http_readiness_and_statistics_are_told_meanwhile(asked: bytes) -> None:
    async with gateway() as it, asyncio.timeout(4.0):
        repaired(it)
        await (await it.connect()).ask(b"GET /v2/models/m%b HTTP/1.1\r\nHost: x\r\n\r\n" % asked)
        assert len(it.upstream.http.requests) == 1


@pytest.mark.parametrize("asked", [b"", b"/config"])
async def test_over_http_what_it_is_waits(asked: bytes) -> None:
    async with gateway() as it, asyncio.TaskGroup() as tasks:
        repaired(it)
        asking = tasks.create_task((await it.connect()).ask(b"GET /v2/models/m%b HTTP/1.1\r\nHost: x\r\n\r\n" % asked))
        await asyncio.sleep(0.1)
        assert not it.upstream.http.requests
        repaired(it, is_over=True)
        await asking
        assert len(it.upstream.http.requests) == 1


@pytest.mark.parametrize("method", ["ModelReady", "ModelStatistics"])
async def test_over_grpc_readiness_and_statistics_are_told_meanwhile(method: str) -> None:
    async with frontend() as it, asyncio.timeout(4.0):
        repaired(it)
        await it.call(SERVICE + method, MESSAGE)
        assert len(it.upstream.grpc.requests) == 1


@pytest.mark.parametrize("method", ["ModelMetadata", "ModelConfig"])
async def test_over_grpc_what_it_is_waits(method: str) -> None:
    async with frontend() as it:
        repaired(it)
        call = it.call(SERVICE + method, MESSAGE)
        await asyncio.sleep(0.1)
        assert not it.upstream.grpc.requests
        repaired(it, is_over=True)
        await call
        assert len(it.upstream.grpc.requests) == 1
