"""Cost budgets behind both frontends over real sockets: which model answers, and what the answers say."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import grpc
import pytest

from control_plane.objects.domain.route import FasterModel, Route, Target
from tests.fakes import FakeGrpc, FakeHttp, FakeUpstream
from tests.fakes.governance import FakeCosts, FakeMeter, governance, known_state
from tests.wire.gateway import gateway
from tests.wire.grpc_frontend import frontend, infer_message
from tests.wire.inference.routes.route_targets_bench import ask, content, echo, failing, grpc_echo, of_stream, said, told

ROUTE = Route("r", "stable", faster=(FasterModel("canary"),), is_repeatable=True)
"""`stable` is the accurate model, and dear; `canary` stands in for it."""
UNITS = {"stable": 30.0, "canary": 2.0}


def governed(route: Route, **units: float | None) -> Any:
    costs = FakeCosts()
    costs.counted = {**UNITS, **units}
    return governance(known_state(routes=(route,)), meter=FakeMeter(has_log=False), costs=costs)


def budget(value: str) -> bytes:
    return f"tidegate-cost-budget-units: {value}\r\n".encode()


async def test_who_pays_for_it_gets_the_accurate_model_and_who_does_not_the_cheaper_one() -> None:
    async with gateway(FakeUpstream(http=FakeHttp(answer=echo)), governed=governed(ROUTE)) as running:
        client = await running.connect()
        asked = {"30": "stable", "29.999": "canary", "2": "canary", "0.5": "canary"}
        assert {value: said(await ask(client, 1.0, headers=budget(value))) for value in asked} == asked
        assert said(await ask(client, 1.0)) == "stable", "without a budget"
        found = {("cost", "r", "stable", "within"): 1, ("cost", "r", "canary", "within"): 2, ("cost", "r", "canary", "over"): 1}
        assert running.inference.dial.totals == found


async def test_the_routes_budget_is_that_of_requests_that_name_none() -> None:
    rights = governed(replace(ROUTE, cost_budget_units=5.0))
    async with gateway(FakeUpstream(http=FakeHttp(answer=echo)), governed=rights) as running:
        client = await running.connect()
        assert said(await ask(client, 1.0)) == "canary"
        assert said(await ask(client, 1.0, headers=budget("50"))) == "stable"


async def test_the_same_over_grpc() -> None:
    async with frontend(FakeGrpc(answer=grpc_echo), governed=governed(ROUTE)) as bench:
        assert await told(bench, 1, metadata=(("tidegate-cost-budget-units", "5"),)) == "canary"
        assert await told(bench, 1, metadata=(("tidegate-cost-budget-units", "50"),)) == "stable"
        for value in ("0", "nan"):
            with pytest.raises(grpc.aio.AioRpcError, match="tidegate-cost-budget-units must be a number") as refused:
                await told(bench, 1, metadata=(("tidegate-cost-budget-units", value),))
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_stream_stays_with_the_model_that_its_first_request_was_cheap_enough_for() -> None:
    async with frontend(FakeGrpc(answer=grpc_echo), governed=governed(replace(ROUTE, cost_budget_units=5.0))) as bench:
        models = await of_stream(bench, [infer_message(model="r", content=content(number)) for number in range(30)])
        assert models == ["canary"] * 30, "also of the 26th, which would have tried the accurate model"


async def test_one_whose_cost_nobody_knows_is_asked_until_it_is_known() -> None:
    rights = governed(ROUTE, stable=None)
    async with gateway(FakeUpstream(http=FakeHttp(answer=echo)), governed=rights) as running:
        client = await running.connect()
        assert said(await ask(client, 1.0, headers=budget("1"))) == "stable"
        rights.costs.counted["stable"] = 30.0
        assert said(await ask(client, 1.0, headers=budget("1"))) == "canary"
        assert running.inference.dial.totals == {("cost", "r", "stable", "unknown"): 1, ("cost", "r", "canary", "over"): 1}


async def test_one_that_has_become_cheaper_is_asked_again_since_it_was_tried() -> None:
    rights = governed(ROUTE)
    async with gateway(FakeUpstream(http=FakeHttp(answer=echo)), governed=rights) as running:
        client = await running.connect()
        answers = [said(await ask(client, float(number), headers=budget("20"))) for number in range(26)]
        assert (answers.count("stable"), answers[-1]) == (1, "stable")
        assert running.inference.dial.totals["cost", "r", "stable", "over"] == 1
        rights.costs.counted["stable"] = 10.0
        assert said(await ask(client, 1.0, headers=budget("20"))) == "stable"


async def test_the_accurate_model_stands_in_for_a_cheaper_one_that_fails() -> None:
    async with gateway(FakeUpstream(http=FakeHttp(answer=failing)), governed=governed(ROUTE)) as running:
        answer = await ask(await running.connect(), 1.0, headers=budget("5"))
        assert (answer.status, said(answer)) == (200, "stable")


async def test_sequences_and_chosen_targets_have_no_budget() -> None:
    async with gateway(FakeUpstream(http=FakeHttp(answer=echo, config=b"{}")), governed=governed(ROUTE)) as running:
        client = await running.connect()
        sequence = {"sequence_id": 7, "sequence_start": True, "sequence_end": True}
        assert said(await ask(client, 1.0, headers=budget("5"), parameters=sequence)) == "stable"
        assert said(await ask(client, 1.0, headers=budget("5") + b"tidegate-target: stable\r\n")) == "stable"
        assert running.inference.dial.totals == {}


async def test_what_the_weights_give_to_another_model_stays_there() -> None:
    route = replace(ROUTE, targets=(Target("next", 10_000),))
    async with gateway(FakeUpstream(http=FakeHttp(answer=echo)), governed=governed(route)) as running:
        assert said(await ask(await running.connect(), 1.0, headers=budget("5"))) == "next"


@pytest.mark.parametrize("value", ["little", "0", "-3", "nan", "inf", "1e308", "5, 5", "9" * 4000])
async def test_what_is_no_budget_is_refused(value: str) -> None:
    async with gateway(FakeUpstream(http=FakeHttp(answer=echo)), governed=governed(ROUTE)) as running:
        answer = await ask(await running.connect(), 1.0, headers=budget(value))
        assert answer.status == 400
        assert json.loads(answer.body)["error"].startswith("tidegate-cost-budget-units must be a number of compute units from 0.001")
        assert len(answer.body) < 400


async def test_two_budgets_of_one_request_are_refused() -> None:
    async with gateway(FakeUpstream(http=FakeHttp(answer=echo)), governed=governed(ROUTE)) as running:
        answer = await ask(await running.connect(), 1.0, headers=budget("5") * 2)
        assert (answer.status, b"got '5, 5'" in answer.body) == (400, True)
