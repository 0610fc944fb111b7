"""Well-behaved clients of all kinds, as raw bytes."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging

import pytest

from control_plane.core.errors import ControlPlaneError, DeadlineExceeded, UpstreamUnavailable
from control_plane.core.infer_call import Outcome
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer
from tests.aio import run
from tests.fakes import FakeHttp, FakeUpstream
from tests.wire.gateway import INFER, LIVE, Answer, Gateway, gateway, infer_request


def ask(*requests: bytes, upstream: FakeUpstream | None = None) -> tuple[list[Answer], list[HttpRequest]]:
    """Send these one after the other on one connection; returns the answers, and the requests that reached
    Triton."""

    async def main() -> tuple[list[Answer], list[HttpRequest]]:
        async with gateway(upstream) as frontend:
            client = await frontend.connect()
            return [await client.ask(request) for request in requests], frontend.upstream.http.requests

    return run(main())


def ask_one(request: bytes, upstream: FakeUpstream | None = None) -> Answer:
    return ask(request, upstream=upstream)[0][0]


def error_of(answer: Answer) -> str:
    text: str = json.loads(answer.body)["error"]
    return text


class TestConnection:
    def test_is_kept_and_serves_one_request_after_the_other(self) -> None:
        answers, sent = ask(infer_request(), LIVE, infer_request())
        assert [answer.status for answer in answers] == [200, 200, 200]
        assert len(sent) == 2
        assert not any(answer.says_close for answer in answers)

    async def test_pipelined_requests_are_answered_in_order(self) -> None:
        bodies = [INFER.replace(b"[1]}]", b"[%d]}]" % number) for number in range(20)]
        async with gateway() as frontend:
            client = await frontend.connect()
            await client.send(b"".join(infer_request(body) for body in bodies))
            assert [(await client.answer()).body for _ in bodies] == bodies

    async def test_a_fast_answer_does_not_overtake_a_slow_one(self) -> None:
        async with gateway() as frontend:
            frontend.upstream.http.calls.hold()
            client = await frontend.connect()
            await client.send(infer_request() + LIVE)
            await frontend.upstream.http.calls.arrivals.get()
            frontend.upstream.http.calls.may_answer.set()
            assert [(await client.answer()).body for _ in range(2)] == [INFER, b""]

    async def test_one_at_a_time_reaches_triton_from_one_connection(self) -> None:
        async with gateway() as frontend:
            frontend.upstream.http.calls.hold()
            client = await frontend.connect()
            await client.send(infer_request() * 3)
            await frontend.upstream.http.calls.arrivals.get()
            assert frontend.upstream.http.calls.in_progress == len(frontend.upstream.http.requests) == 1
            frontend.upstream.http.calls.may_answer.set()
            for _ in range(3):
                await client.answer()

    @pytest.mark.parametrize(
        "request_",
        [
            pytest.param(LIVE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), id="Connection: close"),
            pytest.param(LIVE.replace(b"\r\n\r\n", b"\r\nCONNECTION: foo, Close\r\n\r\n"), id="close in a list"),
            pytest.param(b"GET /v2/health/live HTTP/1.0\r\n\r\n", id="HTTP/1.0"),
            pytest.param(b"GET /v2/health/live HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", id="HTTP/1.0 that would keep it"),
        ],
    )
    async def test_is_closed_after_the_answer_which_says_so(self, request_: bytes) -> None:
        async with gateway() as frontend:
            client = await frontend.connect()
            answer = await client.ask(request_ + LIVE)
            assert (answer.status, answer.says_close) == (200, True)
            assert await client.is_closed_by_server()

    async def test_a_request_in_single_bytes(self) -> None:
        async with gateway() as frontend:
            client = await frontend.connect()
            for byte in infer_request(headers=b"X-Trace: 7\r\n"):
                await client.send(bytes([byte]))
                await asyncio.sleep(0)
            assert (await client.answer()).body == INFER
            assert (b"X-Trace", b"7") in frontend.upstream.http.requests[0].headers

    def test_empty_lines_before_a_request_are_passed_over(self) -> None:
        assert ask_one(b"\r\n\r\n" + LIVE).status == 200

    @pytest.mark.parametrize("origin", [b"http://localhost", b"HTTP://user@h:x", b"http://[", b"http://a_b"])
    def test_of_a_target_in_absolute_form_triton_gets_the_path(self, origin: bytes) -> None:
        """For a host that it cannot read Triton closes the connection, which would pass for its death."""
        answers, (sent,) = ask(infer_request().replace(b"POST ", b"POST " + origin), LIVE)
        assert [answer.status for answer in answers] == [200, 200]
        assert sent.target == b"/v2/models/m/infer"


class TestBody:
    @pytest.mark.parametrize("pieces", [1, 3, len(INFER)])
    @pytest.mark.parametrize("coding", [b"chunked", b"Chunked", b"\tchunked"])
    def test_chunks_are_joined_and_the_chunking_stays_here(self, pieces: int, coding: bytes) -> None:
        size = -(-len(INFER) // pieces)
        chunks = [INFER[at : at + size] for at in range(0, len(INFER), size)]
        body = b"".join(b"%x;ext=1\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
        answers, sent = ask(b"POST /v2/models/m/infer HTTP/1.1\r\nTransfer-Encoding:" + coding + b"\r\n\r\n" + body, LIVE)
        assert [answer.status for answer in answers] == [200, 200]
        assert sent[0].body == INFER

    def test_fields_of_a_trailer_are_not_the_heads(self) -> None:
        """Otherwise a length in the trailer could change how the body, already checked, is parsed."""
        trailer = b"Inference-Header-Content-Length: 1\r\nContent-Encoding: gzip\r\nX-Late: 1\r\n"
        body = b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(INFER), INFER, trailer)
        answers, sent = ask(b"POST /v2/models/m/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
        assert answers[0].status == 200
        assert [name for name, _ in sent[0].headers] == [b"Transfer-Encoding"]

    @pytest.mark.parametrize("encoding", [b"gzip", b"GZIP", b"deflate"])
    def test_is_decoded_here_and_goes_on_plain(self, encoding: bytes) -> None:
        answers, sent = ask(infer_request(gzip.compress(INFER), headers=b"Content-Encoding: " + encoding + b"\r\n"))
        assert (answers[0].status, sent[0].body) == (200, INFER)
        assert b"content-encoding" not in [name.lower() for name, _ in sent[0].headers]

    def test_binary_tensors_are_split_by_the_header_after_decoding(self) -> None:
        text = INFER.replace(b'"data":[1]', b'"parameters":{"binary_data_size":4}')
        headers = b"Content-Encoding: gzip\r\nInference-Header-Content-Length: %d\r\n" % len(text)
        answers, sent = ask(infer_request(gzip.compress(text + b"\0\0\x80\x3f"), headers=headers))
        assert (answers[0].status, sent[0].body) == (200, text + b"\0\0\x80\x3f")


class TestExpect:
    async def test_a_client_that_waits_is_told_to_go_on(self) -> None:
        async with gateway() as frontend:
            client = await frontend.connect()
            await client.send(infer_request(headers=b"Expect: 100-continue\r\n")[: -len(INFER)])
            assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            assert (await client.ask(INFER)).body == INFER

    async def test_it_is_not_told_so_for_a_body_that_will_be_refused(self) -> None:
        async with gateway() as frontend:
            client = await frontend.connect()
            answer = await client.ask(b"POST /v2/models/m/infer HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 99999999\r\n\r\n")
            assert (answer.status, answer.says_close) == (413, True)

    async def test_it_is_not_told_so_in_the_middle_of_another_answer(self) -> None:
        async with gateway() as frontend:
            frontend.upstream.http.calls.hold()
            client = await frontend.connect()
            await client.send(infer_request() + infer_request(headers=b"Expect: 100-continue\r\n"))
            await frontend.upstream.http.calls.arrivals.get()
            frontend.upstream.http.calls.may_answer.set()
            assert [(await client.answer()).status for _ in range(2)] == [200, 200]

    async def test_it_is_told_so_once_the_answer_before_has_gone(self) -> None:
        async with gateway() as frontend:
            frontend.upstream.http.calls.hold()
            client = await frontend.connect()
            await client.send(infer_request() + infer_request(headers=b"Expect: 100-continue\r\n")[: -len(INFER)])
            await frontend.upstream.http.calls.arrivals.get()
            frontend.upstream.http.calls.may_answer.set()
            assert (await client.answer()).status == 200
            assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            assert (await client.ask(INFER)).body == INFER

    def test_other_expectations_are_passed_over(self) -> None:
        assert ask_one(infer_request(headers=b"Expect: 200-ok\r\n")).status == 200

    async def test_a_client_of_http_1_0_is_not_told_to_continue(self) -> None:
        sent = infer_request(headers=b"Expect: 100-continue\r\n").replace(b"HTTP/1.1", b"HTTP/1.0")
        async with gateway() as frontend:
            client = await frontend.connect()
            await client.send(sent[: -len(INFER)])
            await asyncio.sleep(0.01)
            assert (await client.ask(INFER)).status == 200


class TestHead:
    @pytest.mark.parametrize(
        ("target", "status"), [(b"/v2/health/live", 200), (b"/v2/models/m", 200), (b"/v2/models/m/infer", 405), (b"/nowhere", 404)]
    )
    async def test_is_answered_as_get_without_a_body_and_the_connection_lives_on(self, target: bytes, status: int) -> None:
        upstream = FakeUpstream(http=FakeHttp(answer=lambda request: make_answer(200, b"{}" + request.body)))
        async with gateway(upstream) as frontend:
            client = await frontend.connect()
            await client.send(b"HEAD " + target + b" HTTP/1.1\r\n\r\n")
            assert (await client.answer(has_body=False)).status == status
            assert (await client.ask(infer_request())).body == b"{}" + INFER
            assert b"HEAD" not in [request.method for request in frontend.upstream.http.requests], "its answer to HEAD has a body"


class TestOptions:
    @pytest.mark.parametrize(
        ("target", "allow"),
        [
            (b"/v2/models/m/infer", b"OPTIONS, POST"),
            (b"/v2/models/m", b"GET, HEAD, OPTIONS"),
            (b"/v2/logging", b"GET, HEAD, OPTIONS, POST"),
            (b"*", b"GET, HEAD, OPTIONS, POST"),
        ],
    )
    async def test_says_what_the_path_takes_and_asks_nobody(self, target: bytes, allow: bytes) -> None:
        async with gateway() as frontend:
            client = await frontend.connect()
            await client.send(b"OPTIONS " + target + b" HTTP/1.1\r\n\r\n")
            assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 204 No Content\r\nAllow: " + allow + b"\r\n\r\n"
            assert (await client.ask(infer_request())).status == 200
            assert len(frontend.upstream.http.requests) == 1


class TestRoutes:
    @pytest.mark.parametrize(
        ("method", "target"),
        [
            ("GET", "/v2"),
            ("GET", "/v2/health/ready"),
            ("GET", "/v2/models/m"),
            ("GET", "/v2/models/m/config?x=1"),
            ("POST", "/v2/repository/index"),
        ],
    )
    def test_reads_pass_through(self, method: str, target: str) -> None:
        body = b'{"ready":true}' if method == "POST" else b""
        raw = f"{method} {target} HTTP/1.1\r\nX-A: b\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        answers, sent = ask(raw)
        assert answers[0].status == 200
        assert (sent[0].method.decode(), sent[0].target.decode(), sent[0].body) == (method, target, body)

    async def test_live_is_ours_also_without_triton(self) -> None:
        async with gateway() as frontend:
            frontend.servers.down("Triton is starting")
            client = await frontend.connect()
            assert (await client.ask(LIVE)).status == 200
            for request in (LIVE.replace(b"live", b"ready"), infer_request()):
                answer = await client.ask(request)
                assert answer.status == 503
                assert b"\r\nRetry-After: 1\r\n" in answer.head
                assert error_of(answer) == "Triton is starting; try again shortly"

    @pytest.mark.parametrize(
        ("request_", "status"),
        [
            (b"GET /nowhere HTTP/1.1\r\n\r\n", 404),
            (b"GET /v2/models/m/infer HTTP/1.1\r\n\r\n", 405),
            (b"OPTIONS /nowhere HTTP/1.1\r\n\r\n", 404),
            (b"CONNECT example.com:80 HTTP/1.1\r\n\r\n", 404),
            (b"GET http://127.0.0.1/nowhere HTTP/1.1\r\n\r\n", 404),
        ],
    )
    def test_others_never_reach_triton(self, request_: bytes, status: int) -> None:
        answers, sent = ask(request_)
        assert (answers[0].status, sent) == (status, [])
        assert error_of(answers[0]) in ("Not Found", "Method Not Allowed")

    @pytest.mark.parametrize(
        ("body", "status"),
        [
            (b"[" * 60_000, 500),
            (b'{"a":' * 4_000, 500),
            (b'{"ready":true', 500),
            (b'{"ready":true,"ready":false}', 500),
            (b"[" * 1_000_000, 413),
        ],
    )
    def test_the_body_of_a_repository_index_is_checked_too(self, body: bytes, status: int) -> None:
        """A million opening brackets overflow Triton's stack and kill it."""
        answers, sent = ask(b"POST /v2/repository/index HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        assert (answers[0].status, sent) == (status, [])


class TestErrors:
    @pytest.mark.parametrize(
        ("body", "headers", "status"),
        [
            pytest.param(b"{", b"", 500, id="broken json"),
            pytest.param(INFER.replace(b"FP32", b"FP8"), b"", 400, id="an unknown datatype"),
            pytest.param(INFER, b"Inference-Header-Content-Length: 9999\r\n", 400, id="a header length beyond the body"),
            pytest.param(INFER, b"Inference-Header-Content-Length: 66\r\ninference-header-content-length: 66\r\n", 400, id="two of them"),
            pytest.param(INFER, b"Content-Encoding: br\r\n", 501, id="an unknown coding"),
            pytest.param(INFER, b"Content-Encoding: gzip\r\n", 400, id="not gzip"),
            pytest.param(INFER, b"Content-Encoding: gzip\r\nContent-Encoding: gzip\r\n", 400, id="two codings"),
            pytest.param(gzip.compress(bytes(2 << 20)), b"Content-Encoding: gzip\r\n", 413, id="a bomb"),
            pytest.param(INFER, b"tidegate-timeout-ms: 0\r\n", 400, id="no time"),
            pytest.param(INFER, b"tidegate-timeout-ms: -1\r\n", 400, id="negative time"),
            pytest.param(INFER, b"tidegate-timeout-ms: 1.5\r\n", 400, id="a fraction of a millisecond"),
            pytest.param(INFER, b"tidegate-timeout-ms: 86400001\r\n", 400, id="more than a day"),
            pytest.param(INFER, b"tidegate-timeout-ms: " + b"9" * 5000 + b"\r\n", 400, id="more than a number"),
            pytest.param(INFER, b"tidegate-timeout-ms: 5\r\ntidegate-timeout-ms: 5\r\n", 400, id="two times"),
        ],
    )
    async def test_what_is_refused_is_recorded_once_and_leaves_the_connection_usable(
        self, body: bytes, headers: bytes, status: int
    ) -> None:
        async with gateway() as frontend:
            client = await frontend.connect()
            answer = await client.ask(infer_request(body, headers=headers))
            assert (answer.status, answer.says_close) == (status, False)
            assert error_of(answer)
            assert frontend.upstream.http.requests == []
            assert frontend.recorder.outcomes == [Outcome.REFUSED]
            assert (await client.ask(infer_request())).status == 200

    @pytest.mark.parametrize("name", ["\\ud800", "\\u0000", "\\u2028", "\\n", "x" * 500_000, '\\"'])
    def test_whatever_is_in_a_name_the_error_can_be_told(self, name: str) -> None:
        answer = ask_one(infer_request(INFER.replace(b'"X"', f'"{name}"'.encode()).replace(b"FP32", b"FP8")))
        assert answer.status in (400, 500)
        assert 0 < len(error_of(answer)) < 1000

    @pytest.mark.parametrize(
        ("error", "status", "outcome"),
        [(UpstreamUnavailable("it broke"), 503, Outcome.UNAVAILABLE), (DeadlineExceeded("too slow"), 504, Outcome.DEADLINE_EXCEEDED)],
    )
    async def test_failures_on_the_way_to_triton(self, error: ControlPlaneError, status: int, outcome: Outcome) -> None:
        async with gateway(FakeUpstream(http=FakeHttp(answer=_raising(error)))) as frontend:
            client = await frontend.connect()
            answer = await client.ask(infer_request())
            assert (answer.status, error_of(answer)) == (status, str(error))
            assert (await client.ask(LIVE)).status == 200
            assert frontend.recorder.outcomes == [outcome]

    def test_a_defect_is_a_500_that_tells_nothing_and_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.ERROR):
            answers, _ = ask(infer_request(), LIVE, upstream=FakeUpstream(http=FakeHttp(answer=_raising(KeyError("a secret")))))
        assert [answer.status for answer in answers] == [500, 200]
        assert "a secret" not in answers[0].body.decode()
        assert "this is a defect" in caplog.text


class TestAnswer:
    def test_tritons_answer_passes_byte_for_byte(self) -> None:
        head = b"HTTP/1.1 418 I'm A Teapot\r\nx-oDD: \xff\r\nContent-Length: 5\r\nContent-Type: weird\r\n\r\n"
        answer = ask_one(infer_request(), FakeUpstream(http=FakeHttp(answer=lambda _: HttpAnswer(418, head, b'{"a"\n'))))
        assert answer.head + answer.body == head + b'{"a"\n'

    @pytest.mark.parametrize(
        ("status", "outcome"),
        [(200, Outcome.ANSWERED), (404, Outcome.MODEL_NOT_FOUND), (400, Outcome.UPSTREAM_ERROR), (503, Outcome.UPSTREAM_ERROR)],
    )
    def test_is_recorded_by_its_status(self, status: int, outcome: Outcome) -> None:
        async def main(upstream: FakeUpstream) -> None:
            async with gateway(upstream) as frontend:
                frontend.inference.models.answered("m")
                assert (await (await frontend.connect()).ask(infer_request())).status == status
                assert [(each.model_name, each.outcome) for each in frontend.recorder.records] == [("m", outcome)]

        run(main(FakeUpstream(http=FakeHttp(answer=lambda _: make_answer(status)))))

    def test_megabytes(self) -> None:
        body = bytes(range(256)) * 40_000
        assert ask_one(infer_request(), FakeUpstream(http=FakeHttp(answer=lambda _: make_answer(200, body)))).body == body


@pytest.mark.parametrize(
    ("header", "timeout_s"),
    [
        (b"", 30.0),
        (b"tidegate-timeout-ms: 250\r\n", 0.25),
        (b"Tidegate-Timeout-Ms: 86400000\r\n", 86400.0),
        (b"tidegate-timeout-ms: 1\r\n", 0.001),
    ],
)
async def test_the_callers_time_goes_with_the_request(header: bytes, timeout_s: float) -> None:
    async with gateway() as frontend:
        await (await frontend.connect()).ask(infer_request(headers=header))
        assert frontend.upstream.http.calls.timeouts_s == [pytest.approx(timeout_s, rel=0.2)]


async def test_many_clients_at_once() -> None:
    async def one(frontend: Gateway, number: int) -> None:
        client = await frontend.connect()
        for turn in range(5):
            body = INFER.replace(b"[1]}]", b"[%d]}]" % (number * 10 + turn))
            assert (await client.ask(infer_request(body))).body == body

    async with gateway() as frontend, asyncio.TaskGroup() as tasks:
        for number in range(50):
            tasks.create_task(one(frontend, number))


def _raising(error: Exception):  # type: ignore[no-untyped-def]
    def answer(_: HttpRequest) -> HttpAnswer:
        raise error

    return answer
