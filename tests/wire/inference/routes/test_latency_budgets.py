"""Latency budgets behind both frontends over real sockets: which model answers, and what the answers say."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import grpc
import pytest

from control_plane.inference.routes.budget_dial import Expected
from control_plane.objects.domain.route import FasterModel, Route, Target
from control_plane.protocols.grpc import GrpcAnswer, GrpcStatus, status_answer
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer
from control_plane.triton.ports import GrpcCall, Slot
from tests.fakes import FakeGrpc, FakeHttp, FakeUpstream
from tests.fakes.cache import keeping
from tests.wire.gateway import Client, gateway
from tests.wire.grpc_frontend import Bench, frontend, message_of
from tests.wire.inference.routes.route_targets_bench import ask, echo, failing, governed, grpc_echo, model_in, said, told

SLOW_S = 0.05
ROUTE = Route("r", "stable", faster=(FasterModel("canary"),), is_repeatable=True)
"""`stable` is the accurate model, and slow; `canary` stands in for it."""
PATIENT, HASTY = (b"tidegate-latency-budget-ms: %d\r\n" % budget_ms for budget_ms in (60_000, 5))


class SlowHttp(FakeHttp):
    async def send(self, request: HttpRequest, *, timeout_s: float, slot: Slot | None = None) -> HttpAnswer:
        if model_in(request) == "stable":
            await asyncio.sleep(SLOW_S)
        return await super().send(request, timeout_s=timeout_s, slot=slot)


class SlowGrpc(FakeGrpc):
    async def unary(self, call: GrpcCall, *, timeout_s: float, slot: Slot | None = None) -> GrpcAnswer:
        if b"stable" in message_of(call):
            await asyncio.sleep(SLOW_S)
        return await super().unary(call, timeout_s=timeout_s, slot=slot)


async def warmed(client: Client) -> None:
    """Let the gateway learn that there is the accurate model, and then what it takes."""
    for number in range(10):
        if said(await ask(client, 100.0 + number, headers=HASTY)) == "canary":
            return
    pytest.fail("it learns nothing")


async def test_who_gives_it_time_gets_the_accurate_model_and_who_does_not_the_faster_one() -> None:
    async with gateway(FakeUpstream(http=SlowHttp(answer=echo)), governed=governed(ROUTE)) as running:
        client = await running.connect()
        await warmed(client)
        for number in range(5):
            assert said(await ask(client, number, headers=HASTY)) == "canary"
            assert said(await ask(client, number, headers=PATIENT)) == "stable"
            assert said(await ask(client, number)) == "stable", "without a budget"
        totals = running.inference.dial.totals
        assert totals["latency", "r", "stable", "within"] == 5
        assert totals["latency", "r", "stable", "late"] <= 9, "the first, of which it learns"
        assert totals["latency", "r", "canary", "within"] + totals["latency", "r", "canary", "late"] == 6


async def test_the_routes_budget_is_that_of_requests_that_name_none() -> None:
    rights = governed(replace(ROUTE, latency_budget_s=0.005))
    async with gateway(FakeUpstream(http=SlowHttp(answer=echo)), governed=rights) as running:
        client = await running.connect()
        await warmed(client)
        assert [said(await ask(client, number)) for number in range(3)] == ["canary"] * 3
        assert said(await ask(client, 1.0, headers=PATIENT)) == "stable"


async def test_the_same_over_grpc() -> None:
    async with frontend(SlowGrpc(answer=grpc_echo), governed=governed(ROUTE)) as bench:
        assert {await _budgeted(bench, number, "5") for number in range(100, 110)} == {"stable", "canary"}, "it learns"
        assert await _budgeted(bench, 1, "5") == "canary"
        assert await _budgeted(bench, 1, "60000") == "stable"


async def _budgeted(bench: Bench, number: int, budget_ms: str) -> str:
    return await told(bench, number, metadata=(("tidegate-latency-budget-ms", budget_ms),))


async def test_the_answer_of_a_faster_model_is_not_given_to_equal_bytes_once_the_accurate_one_has_time() -> None:
    rights = governed(replace(ROUTE, is_repeatable=False))
    async with gateway(FakeUpstream(http=SlowHttp(answer=echo)), cached=keeping("stable", "canary"), governed=rights) as running:
        client = await running.connect()
        await warmed(client)
        for _ in range(3):  # computed, found, and found by its bytes if they were kept
            assert said(await ask(client, 1.0, headers=HASTY)) == "canary"
        running.inference.dial._forecast = _Idle()
        assert said(await ask(client, 1.0, headers=HASTY)) == "stable"


class _Idle:
    def expected(self, call: Any) -> Expected:
        return Expected()


async def test_the_accurate_model_stands_in_for_a_faster_one_that_fails() -> None:
    async with gateway(FakeUpstream(http=SlowHttp(answer=failing)), governed=governed(ROUTE)) as running:
        client = await running.connect()
        while "canary" not in map(model_in, running.upstream.http.requests):
            answer = await ask(client, float(len(running.upstream.http.requests)), headers=HASTY)
            assert (answer.status, said(answer)) == (200, "stable")


async def test_what_its_caller_has_done_wrong_is_no_answer_within_its_budget() -> None:
    """It fails at once: the model would seem to be fast."""
    wrong, wrong_too = make_answer(400, b'{"error":"no such input"}'), status_answer(GrpcStatus.INVALID_ARGUMENT, "no such input")
    async with gateway(FakeUpstream(http=FakeHttp(answer=lambda _: wrong)), governed=governed(ROUTE)) as running:
        assert (await ask(await running.connect(), 1.0, headers=PATIENT)).status == 400
        assert not running.inference.dial.totals
    async with frontend(FakeGrpc(answer=lambda _: wrong_too), governed=governed(ROUTE)) as bench:
        with pytest.raises(grpc.aio.AioRpcError, match="no such input"):
            await _budgeted(bench, 1, "60000")
        assert not bench.inference.dial.totals


async def test_sequences_versions_and_chosen_targets_have_no_budget() -> None:
    async with gateway(FakeUpstream(http=SlowHttp(answer=echo, config=b"{}")), governed=governed(ROUTE)) as running:
        client = await running.connect()
        await warmed(client)
        sequence = {"sequence_id": 7, "sequence_start": True, "sequence_end": True}
        assert said(await ask(client, 1.0, headers=HASTY, parameters=sequence)) == "stable"
        assert said(await ask(client, 1.0, headers=HASTY + b"tidegate-target: stable\r\n")) == "stable"
        assert said(await ask(client, 1.0, headers=PATIENT + b"tidegate-target: canary\r\n")) == "canary"


async def test_what_the_weights_give_to_another_model_stays_there() -> None:
    route = replace(ROUTE, targets=(Target("next", 10_000),))
    async with gateway(FakeUpstream(http=SlowHttp(answer=echo)), governed=governed(route)) as running:
        assert said(await ask(await running.connect(), 1.0, headers=HASTY)) == "next"


@pytest.mark.parametrize("value", [b"soon", b"0", b"1.5", b"-3"])
async def test_what_is_no_budget_is_refused(value: bytes) -> None:
    async with gateway(FakeUpstream(http=FakeHttp(answer=echo)), governed=governed(ROUTE)) as running:
        answer = await ask(await running.connect(), 1.0, headers=b"tidegate-latency-budget-ms: %b\r\n" % value)
        assert answer.status == 400
        assert json.loads(answer.body)["error"].startswith("tidegate-latency-budget-ms must be a whole number of milliseconds")
