"""Spans of sampled requests over both protocols, and the `traceparent` that Triton gets."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan

from control_plane.cache.domain.eviction import EvictingCache
from control_plane.cache.response_cache import ResponseCache
from control_plane.core.errors import UpstreamUnavailable
from control_plane.core.fingerprint import Fingerprint
from control_plane.core.model import UNKNOWN_MODEL
from control_plane.inference.caching.cached_inference import CachedInference
from control_plane.models.fingerprints import Fingerprints
from control_plane.objects.domain.route import Route
from control_plane.protocols.http1 import make_answer
from control_plane.triton.ports import GrpcCall
from tests.fakes import FakeGrpc, FakeUpstream
from tests.fakes.governance import governance, known_state
from tests.fakes.spans import Spans
from tests.wire.gateway import INFER as BODY
from tests.wire.gateway import gateway, in_its_slot, infer_request
from tests.wire.grpc_frontend import INFER, frontend, infer_message

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-00"


def line(traceparent: str, more: str = "") -> bytes:
    return f"Traceparent: {traceparent}\r\n{more}".encode()


def of(span: ReadableSpan, name: str) -> Any:
    return dict(span.attributes or {}).get(name)


def child_of(attempt: ReadableSpan) -> bytes:
    context = attempt.get_span_context()
    return b"00-%032x-%016x-01" % (context.trace_id, context.span_id)


def parent(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


class TestHttp:
    async def test_triton_gets_the_attempt_as_parent(self) -> None:
        spans = Spans(ratio=0.0)
        async with gateway() as it:
            it.inference.tracer = spans.tracer
            client = await it.connect()
            more = "X-Request-Id: id-1\r\nTracestate: a=b\r\n"
            assert (await client.ask(infer_request(headers=line(SAMPLED, more)))).status == 200
            (request,) = it.upstream.http.requests
        server, (attempt,), waits = spans.by_name()
        assert request.header(b"traceparent") == child_of(attempt)
        assert request.header(b"tracestate") == b"a=b"
        assert bytes(request.body) == BODY
        assert (parent(server), parent(attempt)) == (int(PARENT, 16), server.get_span_context().span_id)
        assert attempt.get_span_context().trace_id == int(TRACE, 16)
        assert (server.name, waits) == ("infer m", [])
        assert (of(server, "http.response.status_code"), of(server, "tidegate.request_id")) == (200, "id-1")
        assert (of(attempt, "tidegate.server"), of(attempt, "tidegate.result")) == ("triton", "answered")

    @pytest.mark.parametrize(
        ("headers", "ratio"),
        [
            pytest.param(b"", 0.0, id="by the ratio"),
            pytest.param(line(UNSAMPLED), 1.0, id="by the caller"),
            pytest.param(line("00-x"), 0.0, id="no traceparent"),
        ],
    )
    async def test_what_is_not_sampled_goes_on_as_it_came(self, headers: bytes, ratio: float) -> None:
        spans = Spans(ratio=ratio)
        async with gateway() as it, gateway() as plain:
            it.inference.tracer = spans.tracer
            for each in (it, plain):
                await (await each.connect()).ask(infer_request(headers=headers))
            (request,), (expected,) = it.upstream.http.requests, plain.upstream.http.requests
        assert (request.target, request.headers, request.body) == (expected.target, expected.headers, expected.body)
        assert spans.all() == ()

    async def test_the_ratio_begins_traces(self) -> None:
        spans = Spans(ratio=1.0)
        async with gateway() as it:
            it.inference.tracer = spans.tracer
            await (await it.connect()).ask(infer_request())
            (request,) = it.upstream.http.requests
        server, (attempt,), _ = spans.by_name()
        assert parent(server) is None
        assert request.header(b"traceparent") == child_of(attempt)

    async def test_a_request_that_is_sent_again_has_two_attempts(self) -> None:
        spans, first = Spans(), FakeUpstream()

        def lost(_: object) -> Any:
            it.servers.down("ended")
            asyncio.get_running_loop().call_later(0.05, it.servers.up, second)
            raise UpstreamUnavailable("lost", is_not_sent=True)

        first.http.answer, second = lost, FakeUpstream()
        async with gateway(first) as it:
            it.inference.tracer = spans.tracer
            assert (await (await it.connect()).ask(infer_request(headers=line(SAMPLED)))).status == 200
            sent = [each.header(b"traceparent") for each in (*first.http.requests, *second.http.requests)]
        _, attempts, (wait,) = spans.by_name()
        assert (wait.name, wait.start_time) == ("wait for server", attempts[0].end_time)
        assert (wait.end_time or 0) <= (attempts[1].start_time or 0)
        assert [of(each, "tidegate.result") for each in attempts] == ["UpstreamUnavailable", "answered"]
        assert sent == [child_of(each) for each in attempts]

    async def test_the_wait_for_a_slot_is_a_span(self) -> None:
        spans = Spans()
        async with gateway(governed=governance(max_in_flight_per_model=1)) as it:
            second = await it.connect()
            async with in_its_slot(it):
                it.inference.tracer = spans.tracer
                await second.send(infer_request(headers=line(SAMPLED)))
                await asyncio.sleep(0.05)
            assert (await second.answer()).status == 200
        server, (attempt,), (queue,) = spans.by_name()
        assert (queue.name, parent(queue)) == ("queue", server.get_span_context().span_id)
        assert queue.end_time is not None
        assert attempt.start_time is not None
        assert queue.end_time <= attempt.start_time

    async def test_a_hit_has_no_attempt(self) -> None:
        spans, fingerprints = Spans(ratio=0.0), Fingerprints()
        fingerprints.change({"m": Fingerprint(bytes(32), is_cacheable=True)})
        cached = CachedInference(ResponseCache(fingerprints, EvictingCache(1 << 20)))
        async with gateway(FakeUpstream(), cached=cached) as it:
            it.upstream.http.answer = lambda _: make_answer(200, b'{"outputs":[]}')
            it.inference.tracer = spans.tracer
            client = await it.connect()
            for _ in range(2):
                assert (await client.ask(infer_request(headers=line(SAMPLED)))).status == 200
        found = spans.all()
        assert [of(each, "tidegate.cache") for each in found if each.name == "infer m"] == ["miss", "hit"]
        assert sum(each.name == "attempt" for each in found) == 1

    async def test_names_are_those_of_models_and_routes_that_exist(self) -> None:
        spans = Spans()
        async with gateway(governed=governance(known_state(routes=(Route("r", "m"),)))) as it:
            it.upstream.http.answer = lambda _: make_answer(404, b'{"error":"unknown"}')
            it.inference.tracer = spans.tracer
            client = await it.connect()
            await client.ask(infer_request(model=b"made-up", headers=line(SAMPLED, "X-Request-Id: " + "x" * 500 + "\r\n")))
            it.inference.models.answered("m")
            await client.ask(infer_request(model=b"r", headers=line(SAMPLED)))
            await client.ask(infer_request(b"{", model=b"made-up", headers=line(SAMPLED)))
        servers = [each for each in spans.all() if each.name.startswith("infer")]
        assert [each.name for each in servers] == [f"infer {UNKNOWN_MODEL}", "infer m", f"infer {UNKNOWN_MODEL}"]
        assert [of(each, "tidegate.route") for each in servers] == [None, "r", None]
        assert [of(each, "tidegate.outcome") for each in servers] == ["model_not_found", "model_not_found", "refused"]
        assert not any("made-up" in str(value) for each in servers for value in (each.attributes or {}).values())
        assert len(of(servers[0], "tidegate.request_id")) == 128

    @pytest.mark.parametrize("path", [b"generate", b"generate_stream"])
    async def test_an_answer_that_may_be_streamed(self, path: bytes) -> None:
        spans = Spans()
        async with gateway() as it:
            it.inference.tracer = spans.tracer
            it.inference.models.answered("m")
            client, body = await it.connect(), b'{"X":1}'
            head = b"POST /v2/models/m/%b HTTP/1.1\r\nHost: localhost\r\n%bContent-Length: %d\r\n\r\n"
            assert (await client.ask(head % (path, line(SAMPLED), len(body)) + body)).status == 200
            (request,) = it.upstream.http.requests
        server, (attempt,), _ = spans.by_name()
        assert request.header(b"traceparent") == child_of(attempt)
        assert (server.name, of(server, "tidegate.outcome")) == ("infer m", "answered")

    async def test_a_call_of_embeddings_has_a_span(self) -> None:
        spans = Spans()
        async with gateway() as it:
            it.inference.tracer = spans.tracer
            body = b'{"model":"made-up","input":"x"}'
            head = b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\n%bContent-Length: %d\r\n\r\n"
            assert (await (await it.connect()).ask(head % (line(SAMPLED), len(body)) + body)).status >= 400
        server, attempts, _ = spans.by_name()
        assert (server.name, parent(server), attempts) == (f"infer {UNKNOWN_MODEL}", int(PARENT, 16), [])

    async def test_a_caller_that_leaves(self) -> None:
        spans = Spans()
        async with gateway() as it:
            it.inference.tracer = spans.tracer
            it.upstream.http.calls.may_answer.clear()
            client = await it.connect()
            await client.send(infer_request(headers=line(SAMPLED)))
            while not it.upstream.http.requests:
                await asyncio.sleep(0.001)
            await client.close()
            while it.inference.in_flight:
                await asyncio.sleep(0.001)
            it.upstream.http.calls.may_answer.set()
        server, (attempt,), _ = spans.by_name()
        assert (of(server, "tidegate.outcome"), of(attempt, "tidegate.result")) == ("abandoned", "CancelledError")


class TestGrpc:
    async def test_triton_gets_the_attempt_as_parent(self) -> None:
        spans = Spans(ratio=0.0)
        async with frontend() as it:
            it.inference.tracer = spans.tracer
            message = infer_message(id_="id-1")
            assert await it.call(INFER, message, metadata=(("traceparent", SAMPLED), ("x", "y"))) == message
            (call,) = it.upstream.grpc.requests
        server, (attempt,), _ = spans.by_name()
        assert [value for name, value in call.head.metadata if name == b"traceparent"] == [child_of(attempt)]
        assert (b"x", b"y") in call.head.metadata
        assert (parent(server), parent(attempt)) == (int(PARENT, 16), server.get_span_context().span_id)
        assert (of(server, "rpc.grpc.status_code"), of(server, "tidegate.request_id")) == (0, "id-1")

    async def test_what_is_not_sampled_goes_on_as_it_came(self) -> None:
        spans = Spans(ratio=1.0)
        async with frontend() as it, frontend() as plain:
            it.inference.tracer = spans.tracer
            for each in (it, plain):
                await each.call(INFER, infer_message(), metadata=(("traceparent", UNSAMPLED),))
            (call,), (expected,) = it.upstream.grpc.requests, plain.upstream.grpc.requests
        assert (call.head.metadata, call.frame) == (expected.head.metadata, expected.frame)
        assert spans.all() == ()

    async def test_an_error_is_the_attempts_too(self) -> None:
        def gone(_: GrpcCall) -> Any:
            raise UpstreamUnavailable("gone")

        spans = Spans()
        async with frontend(FakeGrpc(answer=gone)) as it:
            it.inference.tracer = spans.tracer
            await it.failure(INFER, infer_message(), metadata=(("traceparent", SAMPLED),))
        server, (attempt,), _ = spans.by_name()
        assert (of(server, "rpc.grpc.status_code"), server.status.is_ok) == (14, False)
        assert of(attempt, "tidegate.result") == "UpstreamUnavailable"

    async def test_a_request_of_a_stream_has_a_span_without_attempts(self) -> None:
        spans = Spans()
        async with frontend() as it:
            it.inference.tracer = spans.tracer
            stream = it.stream(metadata=(("traceparent", SAMPLED),))
            await stream.write(infer_message())
            upstream = await it.upstream.grpc.streams.get()
            await upstream.sent.get()
            stream.cancel()
            with suppress(asyncio.CancelledError):
                await stream.read()
            while it.inference.in_flight:
                await asyncio.sleep(0.001)
        assert [each.name.split()[0] for each in spans.all()] == ["infer"]
