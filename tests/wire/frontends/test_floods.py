"""Clients that flood over real sockets: the gateway ends their connections, says why, and answers everybody
else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import replace
from ipaddress import IPv4Network, ip_network

import pytest

from control_plane.auth.domain.source import source_of_address
from perf.floods.flooder import Flooded, flood
from perf.floods.table import FLOODS
from tests.wire.gateway import LIMITS, LIVE, gateway
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


@pytest.mark.parametrize("proxies", [(), (ip_network("127.0.0.0/8"),)], ids=["a client", "a trusted proxy"])
async def test_who_breaks_the_protocol_again_and_again_waits_where_it_connects_anew(proxies: tuple[IPv4Network, ...]) -> None:
    """And who is at the same address as well, for a tenth of a second, but not on a connection that it has."""

    async with gateway(limits=replace(LIMITS, trusted_proxies=proxies)) as it:
        bystander, wrong = await it.connect(), await it.connect()
        assert (await wrong.ask(b"no request\r\n\r\n")).status == 400
        (source,) = it.server._breaches.sources
        for _ in range(20):  # as many as it is, in one moment however busy this machine is
            it.server._breaches.breached(source, asyncio.get_running_loop().time())
        asked_s = asyncio.get_running_loop().time()
        newcomer = await it.connect()
        assert (await newcomer.ask(LIVE)).status == 200
        waited_s = asyncio.get_running_loop().time() - asked_s
        assert (await bystander.ask(LIVE)).status == 200
        assert proxies or waited_s >= 0.05


async def test_over_grpc_as_well() -> None:
    async with frontend() as it:
        peer = await it.connect()
        peer.writer.write(b"no preface" * 10)
        while await peer.reader.read(1000):
            pass
        assert set(it.server._breaches.sources) == {source_of_address("127.0.0.1")}
        assert await it.call(message=infer_message()) == infer_message()


@pytest.mark.parametrize("name", ended("grpc"))
async def test_a_grpc_flood_is_ended_with_a_code_while_others_are_answered(name: str) -> None:
    async with frontend() as it:
        assert await it.call(message=infer_message()) == infer_message()
        refused = await flood_until_refused(name, it.port)
        assert await it.call(message=infer_message()) == infer_message()
        assert set(refused.refusals) <= {FLOODS[name].refused_with, "closed"}
