"""Calls that administer the server: who may make them, and how loads and unloads are carried out."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode

import pytest

from control_plane.core.errors import ControlPlaneError, DeadlineExceeded, InvalidRequest, ModelLoadFailed, ModelNotFound
from control_plane.core.model import ModelOverride
from control_plane.frontends.common import connection_server
from control_plane.frontends.common.body_budget import BodyBudget
from control_plane.frontends.common.http_errors import render_error
from control_plane.frontends.kserve.http import V2Http
from control_plane.frontends.kserve.services import KServeServices
from control_plane.inference.inference import InferenceService
from control_plane.protocols.http1 import HttpAnswer, HttpRequest
from control_plane.protocols.kserve.requests.body_limits import BodyLimits
from control_plane.triton.servers import Servers
from tests.aio import run
from tests.fakes import FakeModels, FakeRecorder, FakeUpstream
from tests.fakes.governance import governance
from tests.wire.gateway import INFER, Answer, Gateway, gateway, infer_request

ADMINISTRATION = [
    (b"POST", b"/v2/repository/models/m/load"),
    (b"POST", b"/v2/repository/models/m/unload"),
    (b"POST", b"/v2/repository/index"),
    (b"GET", b"/v2/logging"),
    (b"POST", b"/v2/logging"),
    (b"GET", b"/v2/models/m/trace/setting"),
    (b"POST", b"/v2/trace/setting"),
    (b"GET", b"/v2/systemsharedmemory/status"),
    (b"POST", b"/v2/cudasharedmemory/unregister"),
]
IN_SHARED_MEMORY = INFER.replace(b'"data":[1]', b'"parameters":{"shared_memory_region":"r","shared_memory_byte_size":4}')


def raw(method: bytes, target: bytes, body: bytes = b"", fields: bytes = b"") -> bytes:
    return b"%b %b HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n%b" % (method, target, fields, len(body), body)


async def ask(frontend: Gateway, request: bytes) -> Answer:
    return await (await frontend.connect()).ask(request)


class Application:
    """The HTTP application without a server, so that a request can come from any address."""

    def __init__(self) -> None:
        self.upstream, self.models, servers = FakeUpstream(), FakeModels(), Servers()
        servers.up(self.upstream)
        governed = governance()
        inference = InferenceService(servers=servers, recorder=FakeRecorder(), governance=governed, default_timeout_s=1.0)
        kserve = KServeServices(
            inference=inference,
            access=governed.access,
            servers=servers,
            models=self.models,
            budget=BodyBudget(1000),
            limits=BodyLimits(max_body_bytes=1000),
            read_timeout_s=1.0,
            allow_shared_memory=True,
        )
        self.v2 = V2Http(kserve)

    def answer(self, method: bytes, target: bytes, *, peer_is_local: bool) -> HttpAnswer:
        try:
            answer = run(self.v2.answer(HttpRequest(method, target, [], peer_is_local=peer_is_local)))
        except ControlPlaneError as error:
            return render_error(error)
        assert isinstance(answer, HttpAnswer)
        return answer


class TestWhoMayAsk:
    @pytest.mark.parametrize(("method", "target"), ADMINISTRATION)
    @pytest.mark.parametrize("peer_is_local", [True, False])
    def test_only_who_is_on_this_machine(self, method: bytes, target: bytes, peer_is_local: bool) -> None:
        application = Application()
        answer = application.answer(method, target, peer_is_local=peer_is_local)
        was_asked = bool(application.models.asked or application.upstream.http.requests)
        assert (answer.status, was_asked) == ((200, True) if peer_is_local else (403, False))

    @pytest.mark.parametrize(("method", "target"), [(b"GET", b"/v2"), (b"GET", b"/v2/models/stats"), (b"GET", b"/v2/health/ready")])
    def test_what_only_reads_is_everyones(self, method: bytes, target: bytes) -> None:
        assert Application().answer(method, target, peer_is_local=False).status == 200

    @pytest.mark.parametrize(("method", "target"), ADMINISTRATION)
    async def test_no_web_page(self, method: bytes, target: bytes) -> None:
        async with gateway(allow_shared_memory=True) as frontend:
            assert (await ask(frontend, raw(method, target, fields=b"Origin: http://evil\r\n"))).status == 403
            assert (frontend.upstream.http.requests, frontend.models.asked) == ([], [])
            assert (await ask(frontend, raw(method, target))).status == 200

    @pytest.mark.parametrize(
        ("peer", "is_local"),
        [
            (("127.0.0.1", 5), True),
            (("127.9.9.9", 5), True),
            (("::1", 5, 0, 0), True),
            ("", True),
            (None, True),
            (("10.0.0.1", 5), False),
            (("::ffff:10.0.0.1", 5, 0, 0), False),
        ],
    )
    def test_a_peers_address_says_where_it_is(self, peer: object, is_local: bool) -> None:
        class Transport(asyncio.Transport):
            def get_extra_info(self, name: str, default: object = None) -> object:
                return peer if name == "peername" else default

        assert connection_server.is_local(Transport()) is is_local


class TestSharedMemory:
    @pytest.mark.parametrize("request_", [raw(b"GET", b"/v2/systemsharedmemory/status"), infer_request(IN_SHARED_MEMORY)])
    @pytest.mark.parametrize("is_allowed", [True, False])
    async def test_is_off_unless_it_is_switched_on(self, request_: bytes, is_allowed: bool) -> None:
        async with gateway(allow_shared_memory=is_allowed) as frontend:
            answer = await ask(frontend, request_)
            assert (answer.status, len(frontend.upstream.http.requests)) == ((200, 1) if is_allowed else (403, 0))
            assert is_allowed or b"--allow-shared-memory" in answer.body


class TestLoad:
    async def test_brings_what_its_body_says_and_answers_as_triton(self) -> None:
        body = json.dumps({"parameters": {"config": "{}", "file:1/m.bin": b64encode(b"\0m").decode()}}).encode()
        async with gateway() as frontend:
            for content in (b"", body):
                answer = await ask(frontend, raw(b"POST", b"/v2/repository/models/m/load", content))
                assert (answer.status, answer.body) == (200, b"")
                assert b"Content-Type: application/json" in answer.head
            override = ModelOverride("{}", {"file:1/m.bin": b"\0m"})
            assert frontend.models.asked == [("load", "m", None), ("load", "m", override)]
            assert frontend.upstream.http.requests == []

    @pytest.mark.parametrize(
        ("failure", "status", "says"),
        [
            (ModelNotFound("no such folder"), 500, "failed to load 'm', failed to poll from model repository"),
            (ModelLoadFailed("load failed", upstream_code=3), 400, "load failed"),
            (ModelLoadFailed("not there", upstream_code=5), 404, "not there"),
            (ModelLoadFailed("not now", upstream_code=14), 503, "not now"),
            (ModelLoadFailed("broken"), 500, "broken"),
            (InvalidRequest("no name"), 400, "no name"),
            (DeadlineExceeded("slow"), 504, "slow"),
        ],
    )
    async def test_that_fails_is_answered_as_triton_does(self, failure: ControlPlaneError, status: int, says: str) -> None:
        async with gateway() as frontend:
            frontend.models.failures["m"] = failure
            answer = await ask(frontend, raw(b"POST", b"/v2/repository/models/m/load"))
            assert (answer.status, json.loads(answer.body)) == (status, {"error": says})

    @pytest.mark.parametrize("body", [b"{", b"[]", b'{"parameters":{"config":3}}', b'{"parameters":{"file:1/m":"$"}}'])
    async def test_that_cannot_be_read_is_not_begun(self, body: bytes) -> None:
        async with gateway() as frontend:
            assert (await ask(frontend, raw(b"POST", b"/v2/repository/models/m/load", body))).status in (400, 500)
            assert frontend.models.asked == []


@pytest.mark.parametrize(("body", "with_dependents"), [(b"", False), (b'{"parameters":{"unload_dependents":true}}', True)])
async def test_an_unload_says_what_goes_too(body: bytes, with_dependents: bool) -> None:
    async with gateway() as frontend:
        answer = await ask(frontend, raw(b"POST", b"/v2/repository/models/m/unload", body))
        assert (answer.status, answer.body) == (200, b"")
        assert frontend.models.asked == [("unload", "m", with_dependents)]


async def test_a_wrong_method_is_told_the_right_ones() -> None:
    async with gateway() as frontend:
        answer = await ask(frontend, raw(b"DELETE", b"/v2/logging"))
        assert answer.status == 405
        assert b"\r\nAllow: GET, HEAD, OPTIONS, POST\r\n" in answer.head


async def test_an_unknown_coding_is_told_the_known_ones() -> None:
    async with gateway() as frontend:
        answer = await ask(frontend, infer_request(headers=b"Content-Encoding: br\r\n"))
        assert answer.status == 501
        assert b"\r\nAccept-Encoding: gzip, deflate\r\n" in answer.head
