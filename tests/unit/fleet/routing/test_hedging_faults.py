"""Hedged requests at servers that fail or fall silent; over fake Tritons."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from control_plane.core.errors import ModelNotFound
from control_plane.fleet.domain.counts import Hedge
from control_plane.objects.domain.route import HedgingPolicy
from tests.unit.fleet.routing.hedging_bench import USUAL_S, Service, serving

pytestmark = pytest.mark.virtual_time

TWICE = HedgingPolicy(twice_from_s=0.0)
AT_ONCE_S = 0.05


async def sent(service: Service, *plans: float | Exception, name: str = "by-route") -> asyncio.Task[Any]:
    """Begin a request, for which servers are planned to take so long."""
    service.tritons.plans = list(plans)
    asking = asyncio.get_running_loop().create_task(service.ask(name, timeout_s=30.0))
    await asyncio.sleep(0.3)
    return asking


def fell_silent(service: Service, server: str) -> None:
    service.bench.servers.members[server].fell_silent()


@pytest.mark.parametrize("silent", [0, 1], ids=["the first", "the second"])
async def test_a_hedged_request_is_answered_by_the_server_that_is_not_silent(silent: int) -> None:
    async with serving(policy=TWICE) as service:
        asking = await sent(service, *((60.0, 0.5) if silent == 0 else (0.5, 60.0)))
        fell_silent(service, service.tritons.sent[silent])
        assert await asking == service.tritons.sent[1 - silent]
        assert len(service.tritons.sent) == 2
        assert service.hedges == {Hedge.WON if silent == 0 else Hedge.LOST: 1}


async def test_one_whose_servers_are_both_silent_goes_to_a_third() -> None:
    async with serving(policy=TWICE) as service:
        for _ in range(40):  # of which four may be sent again
            await service.ask()
        service.tritons.sent.clear()
        asking = await sent(service, 60.0, 60.0)
        began_s = asyncio.get_running_loop().time()
        for server in list(service.tritons.sent):
            fell_silent(service, server)
        assert await asking == service.tritons.sent[2]
        assert len(set(service.tritons.sent)) == 3
        assert asyncio.get_running_loop().time() - began_s < AT_ONCE_S


@pytest.mark.parametrize("name", ["a", "by-route"], ids=["not to be hedged", "not hedged yet"])
async def test_one_that_has_only_one_server_so_far_goes_to_another(name: str) -> None:
    async with serving(policy=HedgingPolicy(is_on=True), is_on=False) as service:
        if name == "by-route":
            await service.learn(part=0.0)
        asking = await sent(service, 60.0, name=name)
        assert len(service.tritons.sent) == 1
        fell_silent(service, service.tritons.sent[0])
        assert await asking == service.tritons.sent[1] != service.tritons.sent[0]


@pytest.mark.parametrize("policy", [None, TWICE], ids=["sent once", "hedged"])
async def test_a_request_taken_back_leaves_no_slot_taken_and_its_model_in_no_danger(policy: HedgingPolicy | None) -> None:
    async with serving(policy=policy, is_on=False) as service:
        slots = service.inference._governance.admission.slots.of("a")
        for _ in range(30):
            await service.ask()
        usual_s = slots._service.answer_s(1.0, ahead=0.0)
        service.tritons.sent.clear()
        plans = [60.0] if policy is None else [60.0, 60.0]
        asking = await sent(service, *plans, name="a" if policy is None else "by-route")
        for server in list(service.tritons.sent):
            fell_silent(service, server)
        assert await asking == service.tritons.sent[-1]
        assert slots.are_idle
        await asyncio.sleep(2.0)  # until Triton has ended what was cancelled
        assert slots.are_idle
        assert not slots._is_in_danger()
        assert slots._service.answer_s(1.0, ahead=0.0) == pytest.approx(usual_s, rel=0.1)


async def test_no_hedge_goes_back_to_a_server_that_the_request_was_sent_away_from() -> None:
    async with serving(policy=TWICE, is_on=False) as service:
        claims = [service.bench.state.reserve("a", busy) for busy in ("s1", "s2")]
        service.tritons.plans = [ModelNotFound("unknown model"), 20 * USUAL_S]
        asking = asyncio.get_running_loop().create_task(service.ask("by-route"))
        await asyncio.sleep(2 * USUAL_S)
        await service.bench.loads["s0"].poll_index()
        assert service.bench.replica("a", "s0").in_flight == 0
        answer = await asking
        assert service.tritons.sent == ["s0", answer]
        for claim in claims:
            assert claim is not None
            claim.release(answered=False)
