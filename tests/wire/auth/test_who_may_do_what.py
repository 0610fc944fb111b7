"""Every call of both frontends, with every kind of key."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from control_plane.core.infer_call import Outcome
from control_plane.core.model import ModelState
from control_plane.core.principal import Principal
from control_plane.frontends.common.body_budget import BodyBudget
from control_plane.frontends.kserve.grpc import SERVICE, V2Grpc
from control_plane.frontends.kserve.services import KServeServices
from control_plane.inference.governance import Governance
from control_plane.inference.inference import InferenceService
from control_plane.objects.domain.route import Route
from control_plane.objects.domain.tenant import Tenant
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer, upstream_pieces
from control_plane.protocols.kserve import routes as v2_route
from control_plane.protocols.kserve.requests.body_limits import BodyLimits
from control_plane.protocols.kserve.routes import V2Route
from control_plane.triton.servers import Servers
from tests.fakes import FakeModels, FakeRecorder
from tests.fakes.governance import FakeMeter, api_key, governance, key_text, known_state
from tests.fakes.triton.generative_model import FakeGenerativeModel
from tests.fakes.triton.text_model import FakeTextModel
from tests.wire.auth.calls import ADMINISTRATION, BODIES, GRPC_CALLS, HTTP_CALLS, INFERENCE, OF_M, OPEN, OWN_EVENTS, REPOSITORY
from tests.wire.gateway import INFER, LIMITS, Gateway, gateway
from tests.wire.grpc_frontend import LIMITS as GRPC_LIMITS
from tests.wire.grpc_frontend import STREAM, Bench, frontend, infer_message

VALID = {
    1: "infer:m",
    2: "infer:*",
    3: "infer:other",
    4: "repository",
    5: "metrics",
    6: "admin",
    11: "viewer",
    12: "operator",
    13: "events",
}
EXPIRED, REVOKED, OF_NOBODY, WRONG_SECRET = 7, 8, 9, 10
KEYS = (
    *(api_key(number, scope) for number, scope in VALID.items()),
    api_key(EXPIRED, "admin", expires_s=1.0),
    api_key(REVOKED, "admin", revoked_s=1.0),
    api_key(OF_NOBODY, "admin", tenant="nobody"),
    api_key(WRONG_SECRET, "admin"),
)
ALLOWED = {OPEN: {*VALID}, INFERENCE: {1, 2, 3, 6}, OF_M: {1, 2, 6}, REPOSITORY: {4, 6}, OWN_EVENTS: {6, 13}, ADMINISTRATION: {6}}

SHOWN = {
    **{scope: key_text(number) for number, scope in VALID.items()},
    "none": "",
    "expired": key_text(EXPIRED),
    "revoked": key_text(REVOKED),
    "of a tenant that does not exist": key_text(OF_NOBODY),
    "wrong secret": f"tg_{WRONG_SECRET:012x}_{0:043d}",
    "unknown": key_text(99),
    "no key": "hello",
    "a token": "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0.",
}
NUMBERS = {scope: number for number, scope in VALID.items()}
WRONG = [shown for shown in SHOWN if shown not in NUMBERS]
"""Credentials that are shown and are no valid key."""


def governed(**known: Any) -> Governance:
    return governance(known_state(keys=KEYS, tenants=(Tenant("team"),), **known), authentication=True)


class AnyJob:
    """Jobs, files and batches of which each exists and is everybody's: `tests/wire/jobs/test_jobs.py` and `test_batches.py` have the
    real ones."""

    async def answer(self, request: HttpRequest, route: V2Route, principal: Principal) -> HttpAnswer:
        return make_answer(200)


class OwnEvents:
    """Events that come as an answer: `tests/wire/frontends/test_tenant_events.py` has the real ones."""

    def read(self, request: HttpRequest, principal: Principal) -> Any:
        return make_answer(200)


def expected(need: str, shown: str) -> int:
    if need == OPEN or NUMBERS.get(shown) in ALLOWED[need]:
        return 200
    return 403 if shown in NUMBERS else 401


def test_every_call_of_the_http_frontend_has_a_row() -> None:
    for pattern, actions in v2_route._TABLE:
        for method in actions:
            assert any(method == verb and pattern.fullmatch(path) for verb, path in HTTP_CALLS), f"{method} {pattern.pattern} has no row"


def test_every_call_of_the_grpc_frontend_has_a_row() -> None:
    rights = governed()
    servers = Servers()
    inference = InferenceService(servers=servers, recorder=FakeRecorder(), governance=rights, default_timeout_s=1.0)
    kserve = KServeServices(
        inference=inference,
        access=rights.access,
        servers=servers,
        models=FakeModels(),
        budget=BodyBudget(1),
        limits=BodyLimits(),
        read_timeout_s=1.0,
    )
    application = V2Grpc(kserve)

    assert {full_name(name) for name in GRPC_CALLS} == {*application._open, *application._administration}


def full_name(method: str) -> str:
    return method if method.startswith("/") else SERVICE + method


@pytest.mark.parametrize(("method", "path"), HTTP_CALLS)
async def test_http(method: str, path: str) -> None:
    async with allowing(path) as shared:
        for shown in NUMBERS:
            await ask_over_http(shared, method, path, shown)
    for shown in WRONG:  # after some of them their address has to wait
        async with allowing(path) as it:
            await ask_over_http(it, method, path, shown)


@asynccontextmanager
async def allowing(path: str) -> AsyncIterator[Gateway]:
    """A gateway whose Triton answers what is asked there."""
    async with gateway(allow_shared_memory=True, governed=governed(), jobs=AnyJob(), events=OwnEvents(), batches=AnyJob()) as it:
        if "completions" in path:
            FakeGenerativeModel(it.upstream)
        elif path.startswith("/v1/"):
            it.upstream.http.answer, it.upstream.control.states = FakeTextModel(), {"m": ModelState.READY}
        if path == "/v2/models/stats":
            it.upstream.http.answer = lambda request: make_answer(200, b'{"model_stats":[]}')
        yield it


async def ask_over_http(it: Gateway, method: str, path: str, shown: str) -> None:
    status = expected(HTTP_CALLS[method, path], shown)
    for header in ("authorization: Bearer ", "x-api-key: "):
        asked, before = len(it.models.asked), len(it.upstream.http.requests)
        fields = f"{header}{SHOWN[shown]}\r\n" if SHOWN[shown] else ""
        body = BODIES.get(path, "{}") if method == "POST" else ""
        request = f"{method} {path} HTTP/1.1\r\nHost: h\r\n{fields}Content-Length: {len(body)}\r\n\r\n{body}"
        answer = await (await it.connect()).ask(request.encode())
        assert answer.status == status, (header, answer)
        assert (b"\r\nWWW-Authenticate: Bearer\r\n" in answer.head) == (status == 401)
        if status != 200:
            assert (len(it.models.asked), len(it.upstream.http.requests)) == (asked, before)
            assert SHOWN[shown].encode() not in answer.body or not SHOWN[shown]
        for sent in it.upstream.http.requests[before:]:
            assert SHOWN[shown].encode() not in b"".join(upstream_bytes(sent)) or not SHOWN[shown]


def upstream_bytes(request: Any) -> list[bytes]:
    return [bytes(piece) for piece in upstream_pieces(request, b"triton")]


@pytest.mark.parametrize("method", GRPC_CALLS)
async def test_grpc(method: str) -> None:
    async with frontend(allow_shared_memory=True, governed=governed()) as shared:
        for shown in NUMBERS:
            await ask_over_grpc(shared, method, shown)
    for shown in WRONG:
        async with frontend(allow_shared_memory=True, governed=governed()) as it:
            await ask_over_grpc(it, method, shown)


async def ask_over_grpc(it: Bench, method: str, shown: str) -> None:
    need = GRPC_CALLS[method]
    code = {200: grpc.StatusCode.OK, 401: grpc.StatusCode.UNAUTHENTICATED, 403: grpc.StatusCode.PERMISSION_DENIED}[expected(need, shown)]
    message = infer_message() if method == "ModelInfer" else service_pb2.ModelReadyRequest(name="m").SerializeToString()
    if need is not OF_M:
        message = b""

    asked, before = len(it.models.asked), len(it.upstream.grpc.requests)
    for metadata in (("authorization", f"Bearer {SHOWN[shown]}"), ("x-api-key", SHOWN[shown])):
        shown_metadata = (metadata,) if SHOWN[shown] else ()
        if method == "ModelStreamInfer":
            call = it.stream(metadata=shown_metadata)
            await call.done_writing()
            assert await call.code() is code
            continue
        call = it.call(full_name(method), message, metadata=shown_metadata)
        assert await call.code() is code, await call.details()
        for sent in it.upstream.grpc.requests:
            assert not {b"authorization", b"x-api-key"} & {name for name, _ in sent.head.metadata}
    if code is not grpc.StatusCode.OK:
        assert (len(it.models.asked), len(it.upstream.grpc.requests)) == (asked, before)


HTTP_OVERRIDES = (
    b'{"parameters":{"config":"{}"}}',
    b'{"parameters":{"config":""}}',
    b'{"parameters":{"file:1/model.py":"Y29kZQ=="}}',
)
GRPC_OVERRIDES = (("config", "string_param", "{}"), ("config", "string_param", ""), ("file:1/model.py", "bytes_param", b"code"))


@pytest.mark.parametrize("shown", ["infer:m", "repository", "admin"])
async def test_code_of_ones_own_may_be_loaded_by_administrators_only(shown: str) -> None:
    """An override's files run with the server's rights, so only callers who may do everything may send
    one."""
    is_allowed, key = shown == "admin", SHOWN[shown]

    async with gateway(governed=governed()) as it:
        for body in HTTP_OVERRIDES:
            head = b"POST /v2/repository/models/m/load HTTP/1.1\r\nHost: h\r\nx-api-key: %b\r\nContent-Length: %d\r\n\r\n"
            answer = await (await it.connect()).ask(head % (key.encode(), len(body)) + body)
            assert answer.status == (200 if is_allowed else 403)
            assert (b"this needs the scope admin: a load that brings" in answer.body) == (shown == "repository")
        assert len(it.models.asked) == (len(HTTP_OVERRIDES) if is_allowed else 0)
    async with frontend(governed=governed()) as it:
        for name, kind, content in GRPC_OVERRIDES:
            request = service_pb2.RepositoryModelLoadRequest(model_name="m")
            setattr(request.parameters[name], kind, content)
            call = it.call(SERVICE + "RepositoryModelLoad", request.SerializeToString(), metadata=(("x-api-key", key),))
            assert await call.code() is (grpc.StatusCode.OK if is_allowed else grpc.StatusCode.PERMISSION_DENIED)
        assert len(it.models.asked) == (len(GRPC_OVERRIDES) if is_allowed else 0)


async def test_a_large_load_is_read_for_administrators_only() -> None:
    """For a hundred megabytes the parser would take a second, in which nobody else is served."""
    size, key = 1 << 21, SHOWN["repository"]
    head = b"POST /v2/repository/models/m/load HTTP/1.1\r\nHost: h\r\nx-api-key: %b\r\nContent-Length: %d\r\n\r\n"

    async with gateway(governed=governed(), limits=replace(LIMITS, max_body_bytes=1 << 22)) as it:
        client = await it.connect()
        await client.send(head % (key.encode(), size))
        answer = await client.answer()
        assert (answer.status, b"this needs the scope admin: a load that brings" in answer.body) == (403, True), "before it has come"
    async with frontend(governed=governed(), limits=replace(GRPC_LIMITS, max_message_bytes=1 << 22)) as it:
        request = service_pb2.RepositoryModelLoadRequest(model_name="m", repository_name="x" * size)
        call = it.call(SERVICE + "RepositoryModelLoad", request.SerializeToString(), metadata=(("x-api-key", key),))
        assert await call.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_a_stream_refuses_the_request_that_is_not_allowed_and_goes_on() -> None:
    async with frontend(governed=governed()) as it:
        it.upstream.control.decoupled["m"] = False
        call = it.stream(metadata=(("x-api-key", key_text(1)),))
        await call.write(infer_message(model="other", id_="1"))
        refused = service_pb2.ModelStreamInferResponse.FromString(await call.read())
        await call.write(infer_message(model="m", id_="2"))
        await call.done_writing()
        answered = await call.read()
        assert "'other' needs a scope that its name fits" in refused.error_message
        assert refused.infer_response.id == "1"
        assert answered is not grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK


async def test_a_stream_ends_when_its_key_is_revoked() -> None:
    known = known_state(keys=KEYS, tenants=(Tenant("team"),))

    async with frontend(governed=governance(known, authentication=True)) as it:
        it.upstream.control.decoupled = {"m": False, "d": True}
        call = it.stream(metadata=(("x-api-key", key_text(2)),))
        await call.write(infer_message(model="m"))
        assert await call.read() is not grpc.aio.EOF
        await call.write(infer_message(model="d"))
        decoupled = await it.upstream.grpc.streams.get()
        assert await decoupled.sent.get()
        known.keys, known.generation = {}, known.generation + 1
        await call.write(infer_message(model="d"))
        assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
        assert decoupled.cancelled.is_set()
        assert decoupled.sent.empty()


ROUTE = Route("m", "real", version="3", tenants=("owners",))
"""A route takes precedence over a model of the same name."""


@pytest.mark.parametrize(("tenant", "status"), [pytest.param("owners", 200, id="listed"), pytest.param("team", 403, id="not-listed")])
async def test_a_routes_tenants_may_call_it_and_nobody_else(tenant: str, status: int) -> None:
    known = known_state(keys=(api_key(1, "infer:*", tenant=tenant),), tenants=(Tenant("team"), Tenant("owners")), routes=(ROUTE,))
    rights = governance(known, authentication=True)

    async with gateway(governed=rights) as it:
        for method, path, body in ((b"POST", b"/v2/models/m/infer", INFER), (b"GET", b"/v2/models/m/config?x=1", b"")):
            head = b"%b %b HTTP/1.1\r\nHost: h\r\nx-api-key: %b\r\nContent-Length: %d\r\n\r\n" % (
                method,
                path,
                key_text(1).encode(),
                len(body),
            )
            assert (await (await it.connect()).ask(head + body)).status == status
        targets = [request.target for request in it.upstream.http.requests]
        assert targets == ([b"/v2/models/real/versions/3/infer", b"/v2/models/real/versions/3/config?x=1"] if status == 200 else [])
    async with frontend(governed=rights) as it:
        metadata = (("x-api-key", key_text(1)),)
        call = it.call(SERVICE + "ModelInfer", infer_message(model="m"), metadata=metadata)
        code = await call.code()
        ready = it.call(SERVICE + "ModelReady", service_pb2.ModelReadyRequest(name="m").SerializeToString(), metadata=metadata)
        assert code is await ready.code() is (grpc.StatusCode.OK if status == 200 else grpc.StatusCode.PERMISSION_DENIED)
        if status == 200:
            sent = service_pb2.ModelInferRequest.FromString(bytes(it.upstream.grpc.requests[0].frame[5:]))
            asked = service_pb2.ModelReadyRequest.FromString(bytes(it.upstream.grpc.requests[1].frame[5:]))
            assert (sent.model_name, sent.model_version, asked.name, asked.version) == ("real", "3", "real", "3")


async def test_a_large_body_is_refused_on_its_head() -> None:
    async with gateway(governed=governed()) as it:
        client = await it.connect()
        await client.send(b"POST /v2/models/m/infer HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n")
        assert (await client.answer()).status == 401


async def test_a_large_body_beyond_a_limit_is_refused_on_its_head_and_metered() -> None:
    meter = FakeMeter()
    tenants = (Tenant("team", requests_per_s=1.0, burst=1),)
    rights = governance(known_state(keys=KEYS, tenants=tenants), authentication=True, meter=meter)
    head = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: h\r\nx-api-key: %b\r\nContent-Length: %d\r\n\r\n"
    async with gateway(governed=rights) as it:
        client = await it.connect()
        assert (await client.ask(head % (key_text(1).encode(), len(INFER)) + INFER)).status == 200
        await client.send(head % (key_text(1).encode(), 1_000_000))
        refused = await client.answer()
        assert refused.status == 429
        assert re.search(rb"\r\nRetry-After: 1\r\n", refused.head)
        assert re.search(rb"\r\nRateLimit-Remaining: 0\r\n", refused.head)
    assert [event.outcome for event in meter.events] == [Outcome.ANSWERED, Outcome.REFUSED]


async def test_over_grpc_a_refusal_says_when_to_come_again() -> None:
    rights = governance(known_state(keys=KEYS, tenants=(Tenant("team", requests_per_s=1.0, burst=1),)), authentication=True)

    async with frontend(governed=rights) as it:
        metadata = (("x-api-key", key_text(1)),)
        await it.call(SERVICE + "ModelInfer", infer_message(), metadata=metadata)
        refused = await it.failure(SERVICE + "ModelInfer", infer_message(), metadata=metadata)
        assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        trailers = dict(refused.trailing_metadata())
        assert (trailers["retry-after"], trailers["ratelimit-remaining"]) == ("1", "0")


def test_a_stream_method_is_the_one_that_clients_call() -> None:
    assert full_name("ModelStreamInfer") == STREAM
