"""One trace from the caller through the gateway to the real Triton, at a collector that decodes what both send it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from tritonclient.grpc import service_pb2

from tests.e2e import raw_http
from tests.e2e.conftest import MODELS, Start
from tests.e2e.tidegate import COMPLETE, Tidegate, wait_for
from tests.http_server import AskedRequest, http_server
from tests.wire.grpc_frontend import INFER as INFER_METHOD

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACES = (TRACE, TRACE.replace("0af", "2af"), TRACE.replace("0af", "3af"))
"""Traces of requests, at least one of which is exported whole: spans that a collector on a busy machine does not take in time are lost."""
JOB_TRACE = "1bf7651916cd43dd8448eb211c80319c"
ECHO = {"inputs": [{"name": "INPUT0", "shape": [1, 4], "datatype": "FP32", "data": [1, 2.5, -3, 4e10]}]}


@dataclass(frozen=True)
class Span:
    service: str
    name: str
    trace: str
    id: str
    parent: str


@dataclass
class Collector:
    """Collector of OTLP over HTTP."""

    url: str = ""
    spans: list[Span] = field(default_factory=list)
    headers: list[str | None] = field(default_factory=list)


@contextmanager
def collector() -> Iterator[Collector]:
    own = Collector()

    def answer(asked: AskedRequest) -> None:
        own.headers.append(asked.headers["x-secret"])
        body = gzip.decompress(asked.body) if asked.headers["Content-Encoding"] == "gzip" else asked.body
        own.spans += read_json(body) if "json" in asked.headers["Content-Type"] else read_protobuf(body)
        asked.answer(200, ExportTraceServiceResponse().SerializeToString())

    with http_server(answer) as own.url:
        yield own


def read_protobuf(body: bytes) -> Iterator[Span]:
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        (service,) = [each.value.string_value for each in resource.resource.attributes if each.key == "service.name"]
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Span(service, span.name, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())


def read_json(body: bytes) -> Iterator[Span]:
    for resource in json.loads(body)["resourceSpans"]:
        names = [each["value"]["stringValue"] for each in resource["resource"]["attributes"] if each["key"] == "service.name"]
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                yield Span(names[0], span["name"], span["traceId"].lower(), span["spanId"].lower(), span.get("parentSpanId", "").lower())


def ask_over_http(running: Tidegate, traceparent: str) -> None:
    assert raw_http.status(raw_http.infer(running.port("http"), "echo", ECHO, fields=[("traceparent", traceparent)])) == 200


def submit_job(running: Tidegate, traceparent: str) -> None:
    headers = [("traceparent", traceparent)]
    answer = raw_http.exchange(running.port("http"), "POST", "/v2/models/echo/jobs", json.dumps(ECHO).encode(), headers)
    assert raw_http.status(answer) == 202, answer


def ask_over_grpc(running: Tidegate, traceparent: str) -> None:
    request = service_pb2.ModelInferRequest(model_name="echo", raw_input_contents=[bytes(16)])
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 4])
    with grpc.insecure_channel(running.address("grpc")) as channel:
        channel.unary_unary(INFER_METHOD)(request.SerializeToString(), metadata=(("traceparent", traceparent),), timeout=60)


def whole_trace(it: Collector, ask: Callable[[str], None]) -> str:
    """Ask until both services' spans of one request have come; its trace."""

    def is_whole(trace: str) -> bool:
        return len({each.service for each in it.spans if each.trace == trace}) == 2

    for trace in TRACES:
        ask(trace)
        with suppress(AssertionError):
            wait_for(lambda trace=trace: is_whole(trace), timeout_s=30)
            return trace
    raise AssertionError(f"no trace has the spans of both: {it.spans}")


@pytest.mark.parametrize(
    ("ask", "workers"), [pytest.param(ask_over_http, "1", id="http"), pytest.param(ask_over_grpc, "2", id="grpc, with workers")]
)
def test_caller_gateway_attempt_and_triton_are_one_trace(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Tidegate, str], None], workers: str
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-secret=hush")
    monkeypatch.setenv("TIDEGATE_TRACE_RATIO", "0")
    with collector() as it:
        tracing = ("mode=opentelemetry", "level=TIMESTAMPS", "rate=1000000000", f"opentelemetry,url={it.url}/v1/traces")
        flags = [f"--triton-arg=--trace-config={each}" for each in tracing]
        running = start(
            tmp_path, "--model-repository", str(MODELS), COMPLETE, "--load", "echo", "--otlp-endpoint", it.url, "--workers", workers, *flags
        )
        trace = whole_trace(it, lambda trace: ask(running, f"00-{trace}-{CALLER}-01"))
        ask(running, f"00-{TRACE[::-1]}-{CALLER}-00")  # of which Triton 24.10 sends spans all the same
        (server,) = [each for each in it.spans if (each.name, each.trace) == ("infer echo", trace)]
        (attempt,) = [each for each in it.spans if (each.name, each.trace) == ("attempt", trace)]
        tops = [each for each in it.spans if each.service != "tidegate" and each.parent == attempt.id]
        assert (server.parent, attempt.parent) == (CALLER, server.id)
        assert tops, it.spans
        submit_job(running, f"00-{JOB_TRACE}-{CALLER}-01")
        wait_for(lambda: any(each.service == "tidegate" and each.trace == JOB_TRACE for each in it.spans), what="a job's", timeout_s=60)
        assert [each.parent for each in it.spans if each.name == "infer echo" and each.trace == JOB_TRACE] == [CALLER]
        assert "hush" in it.headers
        assert "hush" not in running.said()
        assert running.stop() == 0, running.said()
        assert trace in (told := {each.trace for each in it.spans if each.service == "tidegate"})
        assert told <= {*TRACES, JOB_TRACE}
