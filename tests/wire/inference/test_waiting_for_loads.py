"""Callers that wait for models which are on no server: how many may, with how many bytes, and what the others are told."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc.aio
import pytest

from control_plane.admission.waiting_room import WaitingLimits
from control_plane.objects.domain.tenant import Tenant
from tests.fakes.governance import api_key, governance, key_text, known_state
from tests.unit.fleet.fleet_bench import FleetBench, model, running
from tests.wire.gateway import INFER, Answer, Gateway, gateway, infer_request
from tests.wire.grpc_frontend import Bench, frontend, infer_message

LOAD_S = 100.0
"""No test waits for that: it ends the load by itself."""
LIMITS = WaitingLimits(requests=6, requests_per_tenant=4, size_bytes=4000, bytes_per_tenant=3000)
MODELS = [f"m{number}" for number in range(8)]


@asynccontextmanager
async def cold_fleet(*, slots: int = 100) -> AsyncIterator[tuple[FleetBench, Gateway, Bench]]:
    """Both frontends before a Triton whose models load for as long as the test wants."""
    keys = tuple(api_key(number, "infer:*", tenant=f"team{number}") for number in (1, 2, 3))
    known = known_state(keys=keys, tenants=tuple(Tenant(f"team{number}") for number in (1, 2, 3)))
    rights = governance(known, authentication=True, waiting=LIMITS, max_in_flight_per_model=slots, now_s=asyncio.get_running_loop().time)
    fleet = FleetBench(*(model(name, 10) for name in MODELS), wait_s=600.0)
    fleet.tritons["s0"].load_s = dict.fromkeys(MODELS, LOAD_S)
    for name in MODELS:
        fleet.state.fleet.models[name].load_s = LOAD_S
    async with (
        running(fleet),
        gateway(governed=rights) as http,
        frontend(governed=rights) as over_grpc,
    ):
        for each in (http, over_grpc):
            each.inference.dispatch = fleet.dispatch
            for name in MODELS:
                each.inference.models.answered(name)
        yield fleet, http, over_grpc
    assert (rights.admission.slots.room.requests, rights.admission.slots.room.size_bytes) == (0, 0), "places that nobody has left"


def request(team: int, name: str, *, size: int = 0) -> bytes:
    headers = b"x-api-key: %s\r\ntidegate-timeout-ms: 500000\r\n" % key_text(team).encode()
    return infer_request(INFER + b" " * size, headers=headers, model=name.encode())


async def ask(http: Gateway, team: int, name: str, *, size: int = 0) -> asyncio.Task[Answer]:
    """Send a request, and return when the gateway has it."""
    client, before = await http.connect(), http.inference.in_flight
    await client.send(request(team, name, size=size))
    answer = asyncio.get_running_loop().create_task(client.answer())
    async with asyncio.timeout(30):
        while http.inference.in_flight == before and not answer.done():
            await asyncio.sleep(0.001)
    return answer


def retry_after_s(answer: Answer) -> float:
    found = re.search(rb"\r\nRetry-After: (\d+)\r\n", answer.head, re.IGNORECASE)
    assert found, answer.head
    return float(found[1])


async def refusal(answer: asyncio.Task[Answer]) -> tuple[int, float]:
    async with asyncio.timeout(30):
        told = await answer
    return told.status, retry_after_s(told)


async def settled(fleet: FleetBench, http: Gateway, waiting: int) -> None:
    async with asyncio.timeout(30):
        while http.governed.admission.slots.room.requests != waiting:
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("slots", [100, 1], ids=["for their loads", "one for the load, and others in its model's queue"])
async def test_a_tenant_has_as_many_places_as_it_may_and_others_have_theirs(slots: int) -> None:
    async with cold_fleet(slots=slots) as (fleet, http, _):
        waiting = [await ask(http, 1, MODELS[0]) for _ in range(4)]
        await settled(fleet, http, 4)
        for number in range(2):  # one loads after the other
            status, retry_s = await refusal(await ask(http, 1, MODELS[number]))
            assert status == 429
            assert LOAD_S * (number + 0.5) < retry_s <= LOAD_S * (number + 1), "it says when its model should be there"
        waiting += [await ask(http, 2, MODELS[1]) for _ in range(2)]
        await settled(fleet, http, 6)
        status, retry_s = await refusal(await ask(http, 3, MODELS[2]))
        assert (status, 2.5 * LOAD_S < retry_s <= 3 * LOAD_S) == (503, True)
        assert not any(answer.done() for answer in waiting)
        for answer in waiting:
            answer.cancel()


async def test_bytes_that_wait_are_bounded_too() -> None:
    async with cold_fleet() as (fleet, http, _):
        waiting = [await ask(http, 1, MODELS[0], size=2500)]
        await settled(fleet, http, 1)
        assert (await refusal(await ask(http, 1, MODELS[1], size=500)))[0] == 429
        waiting.append(await ask(http, 2, MODELS[1], size=1000))
        await settled(fleet, http, 2)
        assert (await refusal(await ask(http, 3, MODELS[2], size=1000)))[0] == 503
        for answer in waiting:
            answer.cancel()


async def test_places_are_free_again_when_callers_leave_and_when_the_model_is_there() -> None:
    async with cold_fleet() as (fleet, http, _):
        triton = fleet.tritons["s0"]
        triton.load_s[MODELS[0]] = 1.0
        fleet.state.fleet.models[MODELS[0]].load_s = 1.0
        waiting = [await ask(http, 1, MODELS[0]) for _ in range(3)]
        await settled(fleet, http, 3)
        await http.clients[0].close()
        await settled(fleet, http, 2)
        waiting[0].cancel()
        async with asyncio.timeout(60):
            answers = await asyncio.gather(*waiting[1:])
        assert [answer.status for answer in answers] == [200, 200]
        await settled(fleet, http, 0)


async def test_one_connection_with_many_calls_gets_no_more_than_its_tenants_places() -> None:
    async with cold_fleet() as (_, http, over_grpc):
        metadata: Any = (("x-api-key", key_text(1)),)
        calls = [over_grpc.call(message=infer_message(model=MODELS[number % 8]), metadata=metadata, timeout=500.0) for number in range(40)]
        codes, soonest_s = Counter[str](), float("inf")

        async def outcome(call: Any) -> None:
            nonlocal soonest_s
            with suppress(asyncio.CancelledError):
                try:
                    await call
                except grpc.aio.AioRpcError as exc:
                    codes[exc.code().name] += 1
                    soonest_s = min(soonest_s, float(dict(exc.trailing_metadata() or ())["retry-after"]))

        async with asyncio.TaskGroup() as tasks:
            for call in calls:
                tasks.create_task(outcome(call))
            async with asyncio.timeout(60):
                while sum(codes.values()) < 36:
                    await asyncio.sleep(0.01)
            assert http.governed.admission.slots.room.requests == 4
            for call in calls:
                call.cancel()
        assert codes == {"RESOURCE_EXHAUSTED": 36}
        assert soonest_s > LOAD_S / 2
