"""Routes with several targets behind both frontends over real sockets: who goes where, what the answers say, and what
happens when a target fails."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from control_plane.core.infer_call import Outcome
from control_plane.inference.domain.assignment import target_of, unit_digest
from control_plane.objects.domain.route import Route, Target
from control_plane.objects.domain.tenant import Tenant
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer
from tests.fakes import FakeHttp, FakeUpstream
from tests.fakes.cache import keeping
from tests.fakes.governance import api_key, governance, key_text, known_state
from tests.wire.gateway import gateway, infer_request
from tests.wire.inference.routes.route_targets_bench import BOTH, HALF, STUCK, ask, body, echo, failing, governed, model_in, said


async def test_equal_requests_go_to_equal_models_and_answers_say_which() -> None:
    async with gateway(FakeUpstream(http=FakeHttp(answer=echo)), governed=governed(HALF)) as running:
        client, other = await running.connect(), await running.connect()
        first = [said(await ask(client, float(number), id=str(number))) for number in range(60)]
        again = [said(await ask(other, float(number), id=f"again {number}")) for number in range(60)]
        assert first == again
        assert set(first) == set(BOTH)
        assert [model_in(request) for request in running.upstream.http.requests] == first + again


async def test_a_route_with_one_model_says_nothing() -> None:
    async with gateway(FakeUpstream(http=FakeHttp(answer=echo)), governed=governed(Route("r", "stable"))) as running:
        answer = await ask(await running.connect(), 1.0)
        assert b"tidegate-model" not in answer.head


async def test_hits_of_the_cache_and_of_equal_bytes_are_those_of_the_model_that_was_assigned() -> None:
    async with gateway(FakeUpstream(http=FakeHttp(answer=echo)), cached=keeping(*BOTH), governed=governed(HALF)) as running:
        client = await running.connect()
        rounds = [[said(await ask(client, float(number), id="1234")) for number in range(20)] for _ in range(4)]
        assert rounds[0] == rounds[1] == rounds[2] == rounds[3]
        assert len(running.upstream.http.requests) == 20
        running.inference.verbatim.flush_counts()
        assert sum(each.duration_s == 0.0 for each in running.recorder.records) == 40, "rounds that were answered unread"


async def test_a_change_of_weight_holds_for_the_next_request_also_where_equal_bytes_were_answered() -> None:
    rights = governed(HALF)
    async with gateway(FakeUpstream(http=FakeHttp(answer=echo)), cached=keeping(*BOTH), governed=rights) as running:
        client = await running.connect()
        before = [said(await ask(client, float(number))) for number in range(20) for _ in range(3)][::3]
        known = rights.access._mirror
        for weight in (10_000, 0):
            known.routes = {"r": replace(HALF, targets=(Target("canary", weight),))}
            known.generation += 1
            after = {said(await ask(client, float(number))) for number in range(20)}
            assert after == {"canary" if weight else "stable"}, before


@pytest.mark.parametrize(
    ("route", "headers"),
    [
        pytest.param(STUCK, b"X-User: %d\r\n", id="a header"),
        pytest.param(replace(HALF, sticky="header:x-user", salt="other"), b"x-user: %d\r\n", id="another salt"),
    ],
)
async def test_a_user_stays_at_one_model(route: Route, headers: bytes) -> None:
    async with gateway(FakeUpstream(http=FakeHttp(answer=echo)), governed=governed(route)) as running:
        client = await running.connect()
        seen = [{said(await ask(client, float(number), headers=headers % user)) for number in range(5)} for user in range(20)]
        assert all(len(each) == 1 for each in seen)
        assert set.union(*seen) == set(BOTH)
        wanted = [target_of(route, unit_digest(route.salt or "r", b"sticky", b"%d" % user)) for user in range(20)]
        assert seen == [{"stable" if target is None else target.model} for target in wanted]


async def test_without_the_header_the_request_itself_decides() -> None:
    async with gateway(FakeUpstream(http=FakeHttp(answer=echo)), governed=governed(STUCK)) as running:
        client = await running.connect()
        assert {said(await ask(client, float(number))) for number in range(40)} == set(BOTH)


@pytest.mark.parametrize("sticky", ["tenant", "key"])
async def test_a_tenant_or_key_stays_at_one_model(sticky: str) -> None:
    keys = tuple(api_key(number, "infer:r", tenant=f"t{number % 10}") for number in range(1, 21))
    rights = governed(replace(HALF, sticky=sticky), keys=keys, tenants=tuple(Tenant(f"t{number}") for number in range(10)))
    rights = governance(rights.access._mirror, authentication=True)
    async with gateway(FakeUpstream(http=FakeHttp(answer=echo)), governed=rights) as running:
        client = await running.connect()
        seen: dict[int, set[str]] = {}
        for number in range(1, 21):
            headers = f"authorization: Bearer {key_text(number)}\r\n".encode()
            of_key = {said(await ask(client, float(value), headers=headers)) for value in range(4)}
            assert len(of_key) == 1
            seen.setdefault(number % 10 if sticky == "tenant" else number, set()).update(of_key)
        assert all(len(each) == 1 for each in seen.values())
        assert set.union(*seen.values()) == set(BOTH)


async def test_a_sequence_stays_where_it_began_while_weights_change_and_begins_anew_by_the_new_ones() -> None:
    rights = governed(replace(HALF, targets=(Target("canary", 0),)))
    async with gateway(FakeUpstream(http=FakeHttp(answer=echo, config=b"{}")), governed=rights) as running:
        client, known = await running.connect(), rights.access._mirror

        async def step(value: float, sequence: int, *, start: bool = False, end: bool = False) -> str:
            return said(await ask(client, value, parameters={"sequence_id": sequence, "sequence_start": start, "sequence_end": end}))

        assert {await step(float(sequence), sequence, start=True) for sequence in range(1, 9)} == {"stable"}
        known.routes = {"r": replace(HALF, targets=(Target("canary", 10_000),))}
        assert {await step(2.0, sequence) for sequence in range(1, 9)} == {"stable"}
        assert {await step(2.0, sequence, end=True) for sequence in range(1, 5)} == {"stable"}
        assert {await step(3.0, sequence, start=True) for sequence in range(1, 9)} == {"canary"}
        known.routes = {"r": replace(HALF, targets=(Target("canary", 0),))}
        assert {await step(4.0, sequence) for sequence in range(1, 9)} == {"canary"}
        known.routes = {"r": Route("r", "stable")}  # rolled back
        assert {await step(5.0, sequence) for sequence in range(1, 5)} == {"canary"}
        assert {await step(6.0, sequence, end=True) for sequence in range(1, 4)} == {"canary"}
        for is_start in (True, False):  # the fourth did not end, and another one of its id begins
            answer = await ask(client, 6.5, parameters={"sequence_id": 4, "sequence_start": is_start})
            assert json.loads(answer.body)["model_name"] == "stable"
        assert b"tidegate-model" not in (await ask(client, 7.0, parameters={"sequence_id": 1, "sequence_start": True})).head
        known.routes = {"r": Route("r", "next")}  # another one was promoted
        assert {await step(8.0, sequence, end=True) for sequence in range(5, 9)} == {"canary"}
        assert model_in(running.upstream.http.requests[-1]) == "canary"
        await ask(client, 9.0, parameters={"sequence_id": 5, "sequence_start": True})
        assert model_in(running.upstream.http.requests[-1]) == "next"


async def test_a_sequence_that_began_before_the_route_had_targets_ends_where_it_began() -> None:
    rights = governed(Route("r", "stable"))
    async with gateway(FakeUpstream(http=FakeHttp(answer=echo, config=b"{}")), governed=rights) as running:
        client, known = await running.connect(), rights.access._mirror

        async def step(sequence: int, *, start: bool = False, end: bool = False) -> str:
            parameters = {"sequence_id": sequence, "sequence_start": start, "sequence_end": end}
            await ask(client, float(sequence), parameters=parameters)
            return model_in(running.upstream.http.requests[-1])

        assert {await step(sequence, start=True) for sequence in range(1, 9)} == {"stable"}
        known.routes = {"r": replace(HALF, targets=(Target("canary", 10_000),))}
        assert {await step(sequence) for sequence in range(1, 9)} == {"stable"}
        known.routes = {"r": Route("r", "canary")}  # promoted
        assert {await step(sequence, end=True) for sequence in range(1, 9)} == {"stable"}
        assert {await step(sequence, start=True, end=True) for sequence in range(1, 9)} == {"canary"}


async def test_testers_choose_their_target_and_nobody_else_does() -> None:
    keys = (api_key(1, "infer:r", "infer:canary"), api_key(2, "infer:r"))
    known = known_state(routes=(replace(HALF, targets=(Target("canary", 0),)),), keys=keys, tenants=(Tenant("team"),))
    async with gateway(FakeUpstream(http=FakeHttp(answer=echo)), governed=governance(known, authentication=True)) as running:
        client = await running.connect()
        tester, other = (b"authorization: Bearer %b\r\n" % key_text(number).encode() for number in (1, 2))
        assert said(await ask(client, 1.0, headers=tester + b"tidegate-target: canary\r\n")) == "canary"
        assert said(await ask(client, 1.0, headers=tester)) == "stable"
        refused = await ask(client, 1.0, headers=other + b"tidegate-target: canary\r\n")
        assert (refused.status, b"'canary' needs a scope that its name fits" in refused.body) == (403, True)
        unknown = await ask(client, 1.0, headers=tester + b"tidegate-target: nothing\r\n")
        assert (unknown.status, b"is no target of route 'r'; it has stable, canary" in unknown.body) == (400, True)


async def test_a_caller_who_names_a_version_gets_it_of_the_routes_own_model() -> None:
    route = replace(HALF, version="1", targets=(Target("canary", 10_000, "7"),))
    async with gateway(FakeUpstream(http=FakeHttp(answer=echo)), governed=governed(route)) as running:
        client = await running.connect()
        await client.ask(infer_request(body(1.0), model=b"r"))
        await client.ask(infer_request(body(1.0), model=b"r/versions/3"))
        targets = [request.target for request in running.upstream.http.requests]
        assert targets == [b"/v2/models/canary/versions/7/infer", b"/v2/models/stable/versions/3/infer"]


VERSIONS = Route("r", "stable", "1", targets=(Target("stable", 5000, "2"),))


def versioned(request: HttpRequest) -> HttpAnswer:
    parts, asked = request.target.decode().split("/"), json.loads(request.body)
    given = {"id": asked["id"]} if asked.get("id") else {}
    return make_answer(200, json.dumps({**given, "model_name": f"{parts[3]}@{parts[5]}"}, separators=(",", ":")).encode())


async def test_versions_of_one_model_are_targets_and_answers_say_which() -> None:
    rights = governed(VERSIONS)
    async with gateway(FakeUpstream(http=FakeHttp(answer=versioned)), cached=keeping("stable"), governed=rights) as running:
        client = await running.connect()
        rounds = [[said(await ask(client, float(number), id="1234")) for number in range(40)] for _ in range(3)]
        assert rounds[0] == rounds[1] == rounds[2], "no version's cached answer is the other's"
        assert set(rounds[0]) == {"stable@1", "stable@2"}
        assert len(running.upstream.http.requests) == 40
        for wanted in ("stable@1", "stable@2"):
            assert said(await ask(client, 1.0, headers=b"tidegate-target: %b\r\n" % wanted.encode())) == wanted
        unclear = await ask(client, 1.0, headers=b"tidegate-target: stable\r\n")
        assert (unclear.status, b"it has stable@1, stable@2" in unclear.body) == (400, True)


async def test_a_sequence_stays_at_its_version() -> None:
    rights = governed(VERSIONS)
    async with gateway(FakeUpstream(http=FakeHttp(answer=versioned, config=b"{}")), governed=rights) as running:
        client, known = await running.connect(), rights.access._mirror

        async def step(sequence: int, **flags: bool) -> str:
            return said(await ask(client, 1.0, parameters={"sequence_id": sequence, **flags}))

        began = {sequence: await step(sequence, sequence_start=True) for sequence in range(1, 17)}
        assert set(began.values()) == {"stable@1", "stable@2"}
        for weight in (10_000, 0):
            known.routes = {"r": replace(VERSIONS, targets=(Target("stable", weight, "2"),))}
            assert {sequence: await step(sequence) for sequence in began} == began


@pytest.mark.parametrize(
    ("route", "cached", "statuses"),
    [
        pytest.param(HALF, keeping(*BOTH), {200}, id="answers that are cached may be computed twice"),
        pytest.param(replace(HALF, is_repeatable=True), None, {200}, id="the route says that they may"),
        pytest.param(HALF, None, {200, 500}, id="others must not be"),
    ],
)
async def test_the_stable_model_stands_in_for_one_that_fails(route: Route, cached: Any, statuses: set[int]) -> None:
    route = replace(route, targets=(Target("canary", 500),))
    async with gateway(FakeUpstream(http=FakeHttp(answer=failing)), cached=cached, governed=governed(route)) as running:
        client = await running.connect()
        answers = [await ask(client, float(number)) for number in range(200)]
        assert {answer.status for answer in answers} == statuses
        assert all((said(answer) == "stable") is (answer.status == 200) for answer in answers)
        sent = [model_in(request) for request in running.upstream.http.requests]
        assert 3 <= sent.count("canary") <= 20
        # What failed is in no cache: the next time the same is tried again, and answered right again.
        if cached is not None:
            again = [await ask(client, float(number)) for number in range(200)]
            assert [said(answer) for answer in again] == ["stable"] * 200
            assert running.inference.running.in_flight == 0


async def test_a_target_that_has_recovered_is_asked_again_though_equal_bytes_were_answered_in_its_place() -> None:
    is_out_of_order = True

    def answer(request: HttpRequest) -> HttpAnswer:
        return failing(request) if is_out_of_order else echo(request)

    route = replace(HALF, targets=(Target("canary", 500),))
    async with gateway(FakeUpstream(http=FakeHttp(answer=answer)), cached=keeping(*BOTH), governed=governed(route)) as running:
        client = await running.connect()
        for _ in range(2):  # computed, and then found in the cache
            assert [said(await ask(client, float(number))) for number in range(200)] == ["stable"] * 200
        is_out_of_order = False
        assert {said(await ask(client, float(number))) for number in range(200)} == set(BOTH)


async def test_who_fails_always_is_stood_in_for_within_the_retry_budget_only() -> None:
    route = replace(HALF, targets=(Target("canary", 10_000),), is_repeatable=True)
    async with gateway(FakeUpstream(http=FakeHttp(answer=failing)), governed=governed(route)) as running:
        client = await running.connect()
        answers = [await ask(client, float(number)) for number in range(100)]
        stood_in = sum(answer.status == 200 for answer in answers)
        assert 5 <= stood_in <= 30, "a tenth, and what a second leaves"


async def test_a_callers_own_error_is_not_stood_in_for() -> None:
    def refusing(request: HttpRequest) -> HttpAnswer:
        return make_answer(400, b'{"error":"unexpected shape"}')

    route = replace(HALF, targets=(Target("canary", 10_000),), is_repeatable=True)
    async with gateway(FakeUpstream(http=FakeHttp(answer=refusing)), governed=governed(route)) as running:
        answer = await ask(await running.connect(), 1.0)
        assert (answer.status, said(answer), len(running.upstream.http.requests)) == (400, "canary", 1)


async def test_a_target_that_is_not_loaded_costs_nobody_anything() -> None:
    def missing(request: HttpRequest) -> HttpAnswer:
        return make_answer(404, b'{"error":"unknown model"}') if model_in(request) == "canary" else echo(request)

    route = replace(HALF, targets=(Target("canary", 10_000),))
    async with gateway(FakeUpstream(http=FakeHttp(answer=missing)), governed=governed(route)) as running:
        client = await running.connect()
        assert {said(await ask(client, float(number))) for number in range(50)} == {"stable"}
        assert set(running.recorder.outcomes) == {Outcome.ANSWERED}
