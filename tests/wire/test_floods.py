"""Clients that flood over real sockets: the gateway ends their connections, says why, and answers everybody
else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping

import pytest

from perf.floods.flooder import Flooded, flood
from perf.floods.table import FLOODS
from tests.wire.gateway import LIVE, gateway
from tests.wire.grpc_frontend import frontend, infer_message

GIVE_UP_S = 40.0
NEEDS_AUTHENTICATION = "401"


def ended(at: str) -> list[str]:
    """Floods that the frontend must end."""
    floods = FLOODS.items()
    return [name for name, each in floods if each.protocol == at and each.refused_with and each.refused_with != NEEDS_AUTHENTICATION]


async def flood_until_refused(name: str, port: int) -> Flooded:
    """Run a flood in a thread, since its sockets block."""
    it, is_over = FLOODS[name], threading.Event()

    def goes_on(refusals: Mapping[str, int]) -> bool:
        return it.refused_with not in refusals and not is_over.is_set()

    flooding = asyncio.get_running_loop().run_in_executor(None, flood, it, f"127.0.0.1:{port}", "key" if it.has_key else "", goes_on)
    try:
        return await asyncio.wait_for(asyncio.shield(flooding), GIVE_UP_S)
    finally:
        is_over.set()
        await flooding


@pytest.mark.parametrize("name", ended("http"))
async def test_an_http_flood_is_ended_with_a_status_while_others_are_answered(name: str) -> None:
    async with gateway() as it:
        bystander = await it.connect()
        refused = await flood_until_refused(name, it.port)
        await bystander.send(LIVE)
        assert (await bystander.answer()).status == 200
        assert set(refused.refusals) <= {FLOODS[name].refused_with, "closed"}


@pytest.mark.parametrize("name", ended("grpc"))
async def test_a_grpc_flood_is_ended_with_a_code_while_others_are_answered(name: str) -> None:
    async with frontend() as it:
        assert await it.call(message=infer_message()) == infer_message()
        refused = await flood_until_refused(name, it.port)
        assert await it.call(message=infer_message()) == infer_message()
        assert set(refused.refusals) <= {FLOODS[name].refused_with, "closed"}
