"""Nothing is kept for a caller whose key was revoked while the request waited, nor a refusal for one who has more time left."""

from __future__ import annotations

import pytest

from control_plane.core.errors import Overloaded
from control_plane.core.infer_call import Frontend, InferCall
from control_plane.core.principal import Principal
from control_plane.frontends.kserve.grpc_verbatim import GrpcVerbatimCache
from control_plane.frontends.kserve.http_verbatim import HttpVerbatimCache
from control_plane.inference.inference import InferenceService
from control_plane.objects.domain.tenant import Tenant
from control_plane.protocols.grpc import GrpcHead, frame_message, message_answer
from control_plane.protocols.header_forwarding import NO_FORWARDING
from control_plane.protocols.http1 import HttpRequest, make_answer
from control_plane.protocols.http2.headers import encode_varying
from control_plane.triton.ports import GrpcCall
from control_plane.triton.servers import Servers
from tests.fakes import FakeRecorder
from tests.fakes.cache import keeping
from tests.fakes.governance import FakeMeter, api_key, governance, key_text, known_state
from tests.wire.grpc_frontend import infer_message

CALL = InferCall("m", "", "", ())
HEAD = b"POST / HTTP/1.1\r\n\r\n"
BLOCK = encode_varying(((b":path", b"/s/m"),))


class Bench:
    def __init__(self) -> None:
        self.known = known_state(keys=(api_key(1, "infer:m"),), tenants=(Tenant("team"),))
        governed = governance(self.known, authentication=True, meter=FakeMeter(has_log=False))
        cached = keeping("m")
        self.service = InferenceService(
            servers=Servers(), recorder=FakeRecorder(), governance=governed, default_timeout_s=1.0, cached=cached
        )
        self.access = governed.access
        self.http = HttpVerbatimCache(self.service.verbatim.make(Frontend.HTTP), self.access, NO_FORWARDING, are_traced=False)
        self.grpc = GrpcVerbatimCache(self.service.verbatim.make(Frontend.GRPC), self.access, NO_FORWARDING, are_traced=False)
        scope = cached.cache.scope("m", None, "team")
        assert scope is not None
        self.key = scope.key(b"x")
        cached.cache.put(scope, self.key, b"kept", cost_units=1.0)

    def keep(self, frontend: str, body: bytes, principal: Principal) -> bool:
        """Keep an answer to a request of this body; returns whether a repeat has it."""
        if frontend == "http":
            request = HttpRequest(b"POST", b"/", [(b"x-api-key", key_text(1).encode())], body)
            request.derived.head = HEAD
            self.http.keep(request, body, principal, CALL, self.key, make_answer(200))
            return self.http.answer(HEAD, body) is not None
        call = GrpcCall(GrpcHead("/s/m", api_key=key_text(1)), frame_message(body), principal, BLOCK)
        self.grpc.keep(call, CALL, self.key, message_answer(b"answer"))
        return self.grpc.of_connection(max_header_bytes=1000)((BLOCK, frame_message(body)), 0.0) is not None


@pytest.mark.parametrize("frontend", ["http", "grpc"])
async def test_nothing_is_kept_for_a_key_that_was_revoked_meanwhile(frontend: str) -> None:
    bench = Bench()
    principal = bench.access.identify(authorization=None, api_key=key_text(1), peer="", forwarded_for=None)
    assert bench.keep(frontend, b"{}", principal)
    bench.known.keys, bench.known.generation = {}, bench.known.generation + 1
    assert not bench.keep(frontend, b"{ }", principal)
    bench.service.verbatim.flush_counts()


@pytest.mark.parametrize("frontend", ["http", "grpc"])
async def test_nothing_is_kept_for_another_key_than_the_one_that_was_shown(frontend: str) -> None:
    bench = Bench()
    assert not bench.keep(
        frontend,
        b"{}",
        Principal(
            "team",
            "another",
            bench.access.identify(authorization=None, api_key=key_text(1), peer="", forwarded_for=None).scopes,
            is_known=True,
        ),
    )


@pytest.mark.parametrize("frontend", ["http", "grpc"])
async def test_a_refusal_is_not_for_who_has_more_time_left_as_he_has_waited_for_less(frontend: str) -> None:
    bench, frame = Bench(), frame_message(infer_message())
    principal = bench.access.identify(authorization=None, api_key=key_text(1), peer="", forwarded_for=None)
    asked_by: list[float] = []

    def holds(less_s: float) -> bool:
        asked_by.append(less_s)
        return less_s > -0.5

    error = Overloaded("busy")
    error.holds_for_equals = holds
    if frontend == "http":
        request = HttpRequest(b"POST", b"/", [(b"x-api-key", key_text(1).encode())], b"{}", waited_s=3.0)
        request.derived.head = HEAD
        bench.http.keep_refusal(request, principal, CALL, error)
        assert bench.http.answer(HEAD, b"{}") is None
        assert asked_by == [-3.0]
    else:
        came = GrpcCall(GrpcHead("/s/m", timeout_s=9.0, api_key=key_text(1)), frame, principal, BLOCK, waited_s=3.0)
        bench.grpc.keep_refusal(came, CALL, error)
        known = bench.grpc.of_connection(max_header_bytes=1000)
        assert [known((BLOCK, frame), waited_s) is not None for waited_s in (4.0, 3.0, 2.0, 0.0)] == [True, True, False, False]
        assert asked_by == [1.0, 0.0, -1.0, -3.0]
    bench.service.verbatim.flush_counts()


async def test_what_a_call_without_a_deadline_has_waited_is_not_taken_off_the_time_of_its_equals() -> None:
    bench, frame = Bench(), frame_message(infer_message())
    principal = bench.access.identify(authorization=None, api_key=key_text(1), peer="", forwarded_for=None)
    error = Overloaded("busy")
    error.holds_for_equals = lambda less_s: less_s == 0.0
    bench.grpc.keep_refusal(GrpcCall(GrpcHead("/s/m", api_key=key_text(1)), frame, principal, BLOCK, waited_s=3.0), CALL, error)
    known = bench.grpc.of_connection(max_header_bytes=1000)
    assert [known((BLOCK, frame), waited_s) is not None for waited_s in (4.0, 0.0)] == [True, True]
    bench.service.verbatim.flush_counts()
