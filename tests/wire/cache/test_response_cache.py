"""The response cache behind both frontends over real sockets."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from control_plane.core.infer_call import Outcome
from control_plane.frontends.kserve.grpc_infer import MAX_CACHEABLE_REQUEST_BYTES
from control_plane.objects.domain.route import CachePolicy, Route
from control_plane.objects.domain.tenant import Tenant
from control_plane.protocols.grpc import HEAD, GrpcAnswer, status_fields
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer
from control_plane.triton.ports import GrpcCall
from tests.aio import run
from tests.fakes import FakeGrpc, FakeHttp, FakeUpstream
from tests.fakes.cache import keeping
from tests.fakes.governance import api_key, governance, key_text, known_state
from tests.wire.cache.response_cache_bench import as_triton_over_grpc, body, status_of
from tests.wire.gateway import LIMITS, Gateway, gateway, infer_request
from tests.wire.grpc_frontend import frontend


def as_triton(request: HttpRequest) -> HttpAnswer:
    """The answer's JSON begins with the request's id, if it has one."""
    asked = json.loads(request.body)
    given = {"id": asked["id"]} if asked.get("id") else {}
    return make_answer(200, json.dumps({**given, "model_name": "m", "outputs": asked["inputs"]}, separators=(",", ":")).encode())


def with_gateway(test: Any, *, keeps: str = "m", **services: Any) -> None:
    async def main() -> None:
        upstream = FakeUpstream(http=FakeHttp(answer=as_triton))
        limits = replace(LIMITS, max_body_bytes=4 * MAX_CACHEABLE_REQUEST_BYTES)
        async with gateway(upstream, limits, cached=keeping(keeps), **services) as running:
            await test(running)

    run(main())


def test_http_answers_say_where_they_are_from_and_have_their_callers_id() -> None:
    async def test(running: Gateway) -> None:
        client = await running.connect()
        answers = [await client.ask(infer_request(each)) for each in (body(id="1"), body(id="2"), body(2.0, id="2"), body())]
        assert [status_of(answer) for answer in answers] == ["miss", "hit", "miss", "miss"]
        assert [json.loads(answer.body).get("id") for answer in answers] == ["1", "2", "2", None]
        assert answers[1].body == answers[0].body.replace(b'"id":"1"', b'"id":"2"')
        assert len(running.upstream.http.requests) == 3

    with_gateway(test)


def test_of_a_model_that_keeps_none_nothing_is_said() -> None:
    async def test(running: Gateway) -> None:
        client = await running.connect()
        answers = [await client.ask(infer_request(body())) for _ in range(2)]
        assert [status_of(answer) for answer in answers] == ["", ""]
        assert len(running.upstream.http.requests) == 2

    with_gateway(test, keeps="another")


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        pytest.param(b"Cache-Control: no-cache\r\n", "x", id="a caller who wants it computed"),
        pytest.param(b"", "x" * MAX_CACHEABLE_REQUEST_BYTES, id="a request too large to look for"),
    ],
)
def test_bypass(headers: bytes, text: str) -> None:
    request = json.dumps({"inputs": [{"name": "X", "datatype": "BYTES", "shape": [1], "data": [text]}]}).encode()

    async def test(running: Gateway) -> None:
        client = await running.connect()
        answers = [await client.ask(infer_request(request, headers=headers)) for _ in range(2)]
        assert [status_of(answer) for answer in answers] == ["bypass", "bypass"]

    with_gateway(test)


def test_a_thousand_clients_at_once_are_one_request_to_triton() -> None:
    async def test(running: Gateway) -> None:
        running.upstream.http.calls.hold()
        clients = [await running.connect() for _ in range(50)]
        for client in clients:
            await client.send(infer_request(body()) * 20)
            while running.inference.in_flight == 0:  # the first is to be the one that is computed
                await asyncio.sleep(0.001)
        while running.inference.in_flight < 50:
            await asyncio.sleep(0.001)
        await clients[0].close()  # the one whose request is under way
        running.upstream.http.calls.may_answer.set()
        answers = [await client.answer() for client in clients[1:] for _ in range(20)]
        assert {answer.body for answer in answers} == {answers[0].body}
        assert {status_of(answer) for answer in answers} == {"joined", "hit"}
        assert len(running.upstream.http.requests) == 1

    with_gateway(test)


def test_a_hit_waits_for_the_answers_before_it() -> None:
    async def test(running: Gateway) -> None:
        client = await running.connect()
        await client.ask(infer_request(body(1.0)))
        running.upstream.http.calls.hold()
        await client.send(infer_request(body(2.0)))
        while running.inference.in_flight == 0:
            await asyncio.sleep(0.001)
        await client.send(infer_request(body(1.0)))
        running.upstream.http.calls.may_answer.set()
        answers = [await client.answer() for _ in range(2)]
        assert [(status_of(answer), json.loads(answer.body)["outputs"][0]["data"]) for answer in answers] == [
            ("miss", [2.0]),
            ("hit", [1.0]),
        ]

    with_gateway(test)


def test_a_hit_counts_for_its_tenants_rate_and_is_recorded() -> None:
    async def test(running: Gateway) -> None:
        client = await running.connect()
        request = infer_request(body(), headers=b"x-api-key: %b\r\n" % key_text(1).encode())
        answers = [await client.ask(request) for _ in range(4)]
        assert [(answer.status, status_of(answer)) for answer in answers] == [(200, "miss"), (200, "hit"), (200, "hit"), (429, "")]
        assert b"Retry-After" in answers[3].head
        assert running.recorder.outcomes == [Outcome.ANSWERED] * 3 + [Outcome.REFUSED]

    known = known_state(keys=(api_key(1, "infer:m"),), tenants=(Tenant("team", requests_per_s=0.001, burst=3),))
    with_gateway(test, governed=governance(known, authentication=True))


def test_no_hit_for_a_key_that_is_revoked_expires_or_may_not_infer_that() -> None:
    known = known_state(keys=(api_key(1, "infer:m"), api_key(2, "infer:other"), api_key(3, "infer:m")), tenants=(Tenant("team"),))

    async def test(running: Gateway) -> None:
        client = await running.connect()

        async def ask(number: int) -> tuple[int, str]:
            answer = await client.ask(infer_request(body(), headers=b"x-api-key: %b\r\n" % key_text(number).encode()))
            return answer.status, status_of(answer)

        assert [await ask(1) for _ in range(3)] == [(200, "miss"), (200, "hit"), (200, "hit")]
        assert [await ask(2) for _ in range(2)] == [(403, "")] * 2
        assert [await ask(3) for _ in range(2)] == [(200, "hit")] * 2
        known.keys = {key.id: key for key in (api_key(3, "infer:m", expires_s=time.time() - 1),)}
        known.generation += 1
        assert [await ask(3), await ask(1)] == [(401, "")] * 2

    with_gateway(test, governed=governance(known, authentication=True))


def test_a_hit_while_its_key_expires() -> None:
    known = known_state(tenants=(Tenant("team"),))

    async def test(running: Gateway) -> None:
        client = await running.connect()
        known.keys = {key.id: key for key in (api_key(1, "infer:m", expires_s=time.time() + 1.5),)}  # once it runs: a start may take longer
        known.generation += 1
        request = infer_request(body(), headers=b"x-api-key: %b\r\n" % key_text(1).encode())
        statuses = [(await client.ask(request)).status for _ in range(3)]
        while statuses[-1] == 200:
            statuses.append((await client.ask(request)).status)
        assert statuses[:3] == [200, 200, 200]
        assert statuses[-1] == 401

    with_gateway(test, governed=governance(known, authentication=True))


@pytest.mark.parametrize(
    "line",
    [b"Inference-Header-Content-Length: 9\r\nInference-Header-Content-Length: 9\r\n", b"tidegate-timeout-ms: soon\r\n"],
    ids=["a length given twice", "no time"],
)
def test_a_head_that_is_not_in_order_is_refused_recorded_and_limited_as_ever(line: bytes) -> None:
    async def test(running: Gateway) -> None:
        client = await running.connect()
        key = b"x-api-key: %b\r\n" % key_text(1).encode()
        assert (await client.ask(infer_request(body(), headers=key))).status == 200
        answers = [await client.ask(infer_request(body(), headers=key + line)) for _ in range(4)]
        assert [answer.status for answer in answers] == [400, 400, 429, 429]
        assert running.recorder.outcomes == [Outcome.ANSWERED] + [Outcome.REFUSED] * 4

    known = known_state(keys=(api_key(1, "infer:m"),), tenants=(Tenant("team", requests_per_s=0.001, burst=3),))
    with_gateway(test, governed=governance(known, authentication=True))


def test_a_second_cache_control_counts_too() -> None:
    async def test(running: Gateway) -> None:
        client = await running.connect()
        headers = b"Cache-Control: max-age=100\r\nCache-Control: no-cache\r\n"
        assert [status_of(await client.ask(infer_request(body(), headers=headers))) for _ in range(3)] == ["bypass"] * 3

    with_gateway(test)


def test_a_route_and_its_model_are_one() -> None:
    async def test(running: Gateway) -> None:
        client = await running.connect()
        answers = [await client.ask(infer_request(body(), model=name)) for name in (b"m", b"alias", b"alias", b"off", b"off")]
        assert [status_of(answer) for answer in answers] == ["miss", "hit", "hit", "", ""]

    routes = (Route("alias", "m"), Route("off", "m", cache=CachePolicy(is_on=False)))
    with_gateway(test, governed=governance(known_state(routes=routes)))


def message(request_id: str, data: bytes = b"abcd") -> bytes:
    request = service_pb2.ModelInferRequest(model_name="m", id=request_id, raw_input_contents=[data])
    request.inputs.add(name="X", datatype="FP32", shape=[1])
    return bytes(request.SerializeToString())


async def test_what_unlocks_a_restricted_protocol_of_triton_unlocks_cached_answers() -> None:
    def locked(call: GrpcCall) -> GrpcAnswer:
        if (b"triton-grpc-protocol-infer-key", b"s3cret") in call.head.metadata:
            return as_triton_over_grpc(call)
        return GrpcAnswer(14, HEAD, (), status_fields(14, "This protocol is restricted"))

    async with frontend(FakeGrpc(answer=locked), cached=keeping("m")) as bench:
        seen = []
        for key in ("s3cret", "s3cret", "s3cret", "wrong", None):
            call = bench.call(message=message("1"), metadata=(("triton-grpc-protocol-infer-key", key),) if key else ())
            found = await call.code()
            seen.append((found, dict(await call.trailing_metadata()).get("tidegate-cache")))
        assert [cache for _, cache in seen[:3]] == ["miss", "hit", "hit"]
        assert [code for code, _ in seen[3:]] == [grpc.StatusCode.UNAVAILABLE] * 2


async def test_grpc_answers_say_where_they_are_from_in_a_trailer() -> None:
    async with frontend(FakeGrpc(answer=as_triton_over_grpc), cached=keeping("m")) as bench:
        seen = []
        for sent in (message("1"), message("1"), message("2"), message("2", b"efgh")):
            call = bench.call(message=sent)
            answer = service_pb2.ModelInferResponse.FromString(await call)
            seen.append((dict(await call.trailing_metadata())["tidegate-cache"], answer.id, answer.raw_output_contents[0]))
        assert seen == [("miss", "1", b"abcd"), ("hit", "1", b"abcd"), ("hit", "2", b"abcd"), ("miss", "2", b"efgh")]
        call = bench.call(message=message("3"), metadata=(("cache-control", "no-store"),))
        await call
        assert dict(await call.trailing_metadata())["tidegate-cache"] == "bypass"
