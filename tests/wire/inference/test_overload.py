"""Overload of a model over both protocols at once, with the real clients of Triton and a fake one, which
computes one request after the other, whatever has become of its caller.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from random import Random

import grpc.aio
import pytest

from control_plane.objects.domain.tenant import Tenant
from perf.chaos.overload import arrivals
from tests.aio import settle
from tests.fakes.governance import api_key, governance, key_text, known_state
from tests.wire.gateway import Client, Gateway, infer_request
from tests.wire.grpc_frontend import Bench, infer_message
from tests.wire.inference.overload_bench import Triton, both_frontends

SERVICE_S = 0.02
"""Time that a request takes; longer on a machine that is too busy to let Triton be the narrowest place."""
COSTS, LONGEST_S = 6, 0.2
"""The service time is at least so many times what one request costs everybody else, and at most so long, in seconds."""
DEADLINES, LASTS = 25, 150
"""Deadline of a request and duration of the load, in service times."""


@pytest.mark.parametrize("leaves", ["http", "grpc"])
async def test_the_slot_of_a_caller_that_left_is_free_when_triton_has_ended(leaves: str) -> None:
    triton = Triton()
    async with both_frontends(triton, governance(max_in_flight_per_model=1)) as (http, grpc_):
        leaving, staying = await http.connect(), await http.connect()
        if leaves == "http":
            await leaving.send(infer_request())
            assert await triton.begun.get() == "http"
            await leaving.close()
        else:
            call = grpc_.call(message=infer_message())
            leaving_call = asyncio.get_running_loop().create_task(_outcome(call))
            assert await triton.begun.get() == "grpc"
            call.cancel()
            await leaving_call
        await staying.send(infer_request())
        await asyncio.sleep(0.3)
        await settle()
        assert triton.begun.empty()
        triton.may_end.set()
        assert (await staying.answer()).status == 200
        assert triton.computed == 2


async def _outcome(call: grpc.aio.UnaryUnaryCall) -> str:
    try:
        await call
    except grpc.aio.AioRpcError as exc:
        return exc.code().name
    except asyncio.CancelledError:
        return "CANCELLED"
    return "OK"


@dataclass
class Load:
    """Open-loop load over both frontends."""

    http: Gateway
    grpc: Bench
    fields: bytes
    deadline_s: float = 60.0
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    retry_after_s: list[int] = field(default_factory=list)
    _idle: list[Client] = field(default_factory=list)

    async def run(self, per_s: float, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        async with asyncio.TaskGroup() as tasks:
            for at_s, protocol in arrivals(Random(0), per_s, seconds):
                await asyncio.sleep(max(0.0, began_s + at_s - loop.time()))
                tasks.create_task(self._over_grpc() if protocol == "grpc" else self._over_http())

    async def cost_s(self) -> float:
        """Measure what a request costs all but Triton, which must compute nothing yet."""
        began_s = time.perf_counter()
        for _ in range(25):
            await self._over_http()
            await self._over_grpc()
        return (time.perf_counter() - began_s) / 50

    async def _over_http(self) -> None:
        client = self._idle.pop() if self._idle else await self.http.connect()
        fields = b"tidegate-timeout-ms: %d\r\n" % (self.deadline_s * 1000) + self.fields
        answer = await client.ask(infer_request(headers=fields))
        self._idle.append(client)
        self.ended["http", "OK" if answer.status == 200 else str(answer.status)] += 1
        if answer.status == 503:
            self.retry_after_s.append(int(answer.head.partition(b"Retry-After: ")[2].split(b"\r\n")[0]))

    async def _over_grpc(self) -> None:
        metadata = [tuple(line.decode().lower().split(": ")) for line in self.fields.split(b"\r\n") if line.startswith(b"x-api-key")]
        self.ended["grpc", await _outcome(self.grpc.call(message=infer_message(), timeout=self.deadline_s, metadata=metadata))] += 1


@pytest.mark.parametrize("authentication", [False, True])
async def test_thrice_the_capacity_is_answered_as_far_as_triton_computes(authentication: bool) -> None:
    known = known_state(keys=(api_key(1, "infer:*"),), tenants=(Tenant("team"),))
    triton, rights = Triton(), governance(known, authentication=authentication, max_in_flight_per_model=64)
    triton.may_end.set()
    fields = b"x-api-key: %b\r\n" % key_text(1).encode() * authentication
    async with both_frontends(triton, rights) as (http, grpc_):
        triton.service_s = min(max(SERVICE_S, COSTS * await Load(http, grpc_, fields).cost_s()), LONGEST_S)
        load, triton.computed = Load(http, grpc_, fields, DEADLINES * triton.service_s), 0
        await load.run(3 / triton.service_s, LASTS * triton.service_s)
        # The first half second of an overload goes to learn from.
        answered = load.ended["http", "OK"] + load.ended["grpc", "OK"]
        assert answered >= 0.7 * triton.computed, load.ended
        assert answered >= 0.4 * LASTS, load.ended
        assert 0.5 < load.ended["http", "OK"] / load.ended["grpc", "OK"] < 2.0, load.ended
        assert load.retry_after_s
        assert min(load.retry_after_s) >= 1
