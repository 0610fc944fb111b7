"""`GET /v2/models/stats` and ModelStatistics without a name: each caller sees the models that it may call,
and no others."""

from __future__ import annotations

from typing import Any

import grpc
import orjson
import pytest
from google.protobuf import json_format
from tritonclient.grpc import service_pb2

from control_plane.frontends.kserve.grpc import SERVICE
from control_plane.inference.governance import Governance
from control_plane.objects.domain.route import Route
from control_plane.objects.domain.tenant import Tenant
from control_plane.protocols.grpc import GrpcAnswer, message_answer, status_answer
from control_plane.protocols.http1 import HttpAnswer, make_answer
from control_plane.protocols.kserve.merged_statistics import no_statistics
from tests.fakes import FakeGrpc, FakeHttp, FakeUpstream
from tests.fakes.governance import api_key, governance, key_text, known_state
from tests.wire.gateway import gateway
from tests.wire.grpc_frontend import frontend

MODELS = ("text_a", "text_b", "secret", "real", "shadowed")
ROUTES = (
    Route("search", "real"),
    Route("shadowed", "text_a"),  # callers who name this mean `text_a`
    Route("closed", "secret", tenants=("owners",)),
)
SCOPES = {1: "infer:text_*", 2: "infer:*", 3: "infer:search", 4: "infer:shadowed", 5: "infer:nothing", 6: "admin", 7: "infer:closed"}
SEEN = {
    1: {"text_a", "text_b"},
    2: {"text_a", "text_b", "secret", "real"},  # all but the one that a route of its name hides
    3: {"real"},
    4: {"text_a"},
    5: set[str](),
    6: {*MODELS},
    7: set[str](),  # the route is not open to this tenant
}


def governed() -> Governance:
    keys = tuple(api_key(number, scope) for number, scope in SCOPES.items())
    return governance(known_state(keys=keys, tenants=(Tenant("team"), Tenant("owners")), routes=ROUTES), authentication=True)


def statistics(models: tuple[str, ...] = MODELS) -> list[dict[str, Any]]:
    """Statistics with a number beyond 53 bits, which must not be rounded."""
    return [{**no_statistics(name, version), "inference_count": 2**63 + 1} for name in models for version in ("1", "2")]


HTTP_BODY = orjson.dumps({"model_stats": statistics()})


def http_answer(body: bytes = HTTP_BODY) -> FakeUpstream:
    return FakeUpstream(http=FakeHttp(answer=lambda request: make_answer(200, body)))


def grpc_answer(answer: GrpcAnswer | None = None) -> FakeGrpc:
    message = json_format.ParseDict({"model_stats": statistics()}, service_pb2.ModelStatisticsResponse())
    whole = message_answer(message.SerializeToString())
    return FakeGrpc(answer=lambda call: answer or whole)


async def asked(it: Any, key: int | None, method: str = "GET") -> tuple[int, bytes]:
    shown = "" if key is None else f"x-api-key: {key_text(key)}\r\n"
    client = await it.connect()
    await client.send(f"{method} /v2/models/stats HTTP/1.1\r\nHost: h\r\n{shown}\r\n".encode())
    answer = await client.answer(has_body=method != "HEAD")
    return answer.status, answer.body


@pytest.mark.parametrize("key", SCOPES)
async def test_over_http(key: int) -> None:
    async with gateway(http_answer(), governed=governed()) as it:
        status, body = await asked(it, key)
        found = orjson.loads(body)["model_stats"]
        assert status == 200
        assert found == [each for each in statistics() if each["name"] in SEEN[key]]
        assert (await asked(it, key, "HEAD"))[0] == 200


@pytest.mark.parametrize("key", SCOPES)
@pytest.mark.parametrize("version", ["", "1"])
async def test_over_grpc(key: int, version: str) -> None:
    async with frontend(grpc_answer(), governed=governed()) as it:
        request = service_pb2.ModelStatisticsRequest(version=version).SerializeToString()
        answer = await it.call(SERVICE + "ModelStatistics", request, metadata=(("x-api-key", key_text(key)),))
        found = service_pb2.ModelStatisticsResponse.FromString(answer).model_stats
        assert {each.name for each in found} == SEEN[key]
        assert len(found) == 2 * len(SEEN[key])
        assert all(each.inference_count == 2**63 + 1 for each in found)


async def test_who_may_see_all_is_given_tritons_own_bytes() -> None:
    body = b'{ "model_stats" :%b}' % orjson.dumps(statistics(("text_a",)))

    async with gateway(http_answer(body), governed=governed()) as it:
        assert await asked(it, 2) == (200, body)
    async with gateway(http_answer(body)) as it:
        assert await asked(it, None) == (200, body)


@pytest.mark.parametrize("body", [b"", b"{}", b'{"model_stats":[{}]}', b'{"model_stats":7}', b"[]", b'{"model_stats":['])
async def test_what_nobody_can_read_nobody_is_shown(body: bytes) -> None:
    async with gateway(http_answer(body), governed=governed()) as it:
        status, shown = await asked(it, 1)
        assert status == 502
        assert b"cannot be read" in shown
    async with frontend(grpc_answer(message_answer(b"\x0a\x05ab")), governed=governed()) as it:
        failure = await it.failure(SERVICE + "ModelStatistics", b"", metadata=(("x-api-key", key_text(1)),))
        assert failure.code() is grpc.StatusCode.INTERNAL


async def test_errors_pass() -> None:
    def refused(answer: HttpAnswer) -> FakeUpstream:
        return FakeUpstream(http=FakeHttp(answer=lambda request: answer))

    async with gateway(refused(make_answer(503, b'{"error":"busy"}')), governed=governed()) as it:
        assert await asked(it, 1) == (503, b'{"error":"busy"}')
    async with frontend(grpc_answer(status_answer(14, "busy")), governed=governed()) as it:
        failure = await it.failure(SERVICE + "ModelStatistics", b"", metadata=(("x-api-key", key_text(1)),))
        assert failure.details() == "busy"
