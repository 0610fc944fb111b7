from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, StatusCode

from control_plane.core.infer_call import CacheStatus, Frontend, Outcome
from control_plane.telemetry.adapters.otlp import OtlpSpans, open_otlp_spans
from control_plane.telemetry.tracing import RequestTrace, TracedEnd, Tracer
from tests.fakes.spans import Spans
from tests.http_server import AskedRequest, http_server


def ended(**more: object) -> TracedEnd:
    facts: dict[str, object] = {
        "model": "m",
        "route": "r",
        "tenant": "team",
        "frontend": Frontend.HTTP,
        "outcome": Outcome.ANSWERED,
        "status": 200,
        "server": "server-1",
        "request_id": "id-1",
        "began_s": 1.0,
        "ended_s": 3.0,
    }
    return TracedEnd(**(facts | more))  # type: ignore[arg-type]


def begun(tracer: Tracer) -> RequestTrace:
    trace = tracer.begin("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    assert trace is not None
    return trace


def test_a_request_is_a_server_span_and_its_parts_are_beneath() -> None:
    spans = Spans(now_s=lambda: 1.5)
    trace = begun(spans.tracer)
    trace.waited("queue", 1.0)
    trace.end_attempt(trace.begin_attempt("server-1"), "answered", is_failed=False)
    trace.cache = CacheStatus.JOINED
    trace.end(ended())
    server, (attempt,), (queue,) = spans.by_name()
    assert server.parent is not None
    assert server.parent.span_id == 0xB7AD6B7169203331
    assert (server.name, server.kind, server.status.status_code) == ("infer m", SpanKind.SERVER, StatusCode.UNSET)
    assert server.start_time is not None
    assert server.end_time is not None
    assert server.end_time - server.start_time == pytest.approx(2e9, abs=1e3)
    assert dict(server.attributes or {}) == {
        "tidegate.model": "m",
        "tidegate.route": "r",
        "tidegate.tenant": "team",
        "tidegate.outcome": "answered",
        "tidegate.server": "server-1",
        "tidegate.request_id": "id-1",
        "tidegate.cache": "shared",
        "http.request.method": "POST",
        "http.response.status_code": 200,
    }
    for part in (attempt, queue):
        assert part.parent is not None
        assert part.parent.span_id == server.get_span_context().span_id
        assert part.get_span_context().trace_id == 0x0AF7651916CD43DD8448EB211C80319C
    assert dict(attempt.attributes or {}) == {"tidegate.server": "server-1", "tidegate.result": "answered"}
    assert (attempt.kind, queue.kind, queue.name) == (SpanKind.CLIENT, SpanKind.INTERNAL, "queue")


def test_what_lasts_beyond_the_request_ends_with_it() -> None:
    spans = Spans(now_s=lambda: 2.0)
    trace = begun(spans.tracer)
    trace.begin_attempt("server-1")
    trace.end(ended())
    server, (attempt,), _ = spans.by_name()
    assert attempt.end_time == server.end_time
    assert dict(attempt.attributes or {})["tidegate.result"] == "unfinished"


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ({"outcome": Outcome.REFUSED, "status": 400}, StatusCode.UNSET),
        ({"outcome": Outcome.UPSTREAM_ERROR, "status": 500}, StatusCode.ERROR),
        ({"outcome": Outcome.DEADLINE_EXCEEDED, "status": 4, "frontend": Frontend.GRPC}, StatusCode.ERROR),
    ],
)
def test_what_the_caller_did_wrong_is_no_error_of_ours(facts: dict[str, object], status: StatusCode) -> None:
    spans = Spans()
    begun(spans.tracer).end(ended(**facts))
    assert spans.by_name()[0].status.status_code is status


def test_texts_are_bounded() -> None:
    spans = Spans()
    begun(spans.tracer).end(ended(request_id="x" * 10_000, tenant="y" * 10_000, frontend=Frontend.GRPC))
    server, _, _ = spans.by_name()
    assert max(len(value) for value in (server.attributes or {}).values() if isinstance(value, str)) == 128
    assert dict(server.attributes or {})["rpc.method"] == "ModelInfer"


class Failing(SpanExporter):
    def __init__(self, *, raises: bool) -> None:
        self._raises = raises

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self._raises:
            raise OSError("no route to host")
        return SpanExportResult.FAILURE

    def shutdown(self) -> None: ...


@pytest.mark.parametrize("raises", [False, True])
def test_what_the_collector_does_not_take_is_counted_and_said_once(raises: bool, caplog: pytest.LogCaptureFixture) -> None:
    spans = OtlpSpans(Failing(raises=raises))
    tracer = Tracer(spans, 1.0, time.monotonic)
    for _ in range(600):  # more than one batch
        begun(tracer).end(ended())
    spans.close()
    assert spans.lost == 600
    assert [each.message for each in caplog.records if each.levelno >= logging.WARNING] == [
        "the OpenTelemetry collector takes no spans; requests go on, and tidegate_spans_lost_total counts"
    ]


def test_a_collector_that_hangs_holds_up_the_stop_for_two_seconds(caplog: pytest.LogCaptureFixture) -> None:
    free = threading.Event()

    class Hanging(Failing):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            free.wait()
            return SpanExportResult.FAILURE

    spans = OtlpSpans(Hanging(raises=False))
    begun(Tracer(spans, 1.0, time.monotonic)).end(ended())
    began_s = time.monotonic()
    spans.close()
    assert 1.5 < time.monotonic() - began_s < 4.0
    free.set()


def test_a_collector_that_hangs_costs_no_more_memory_than_the_queue() -> None:
    free, taken = threading.Event(), []

    class Hanging(Failing):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            free.wait()
            taken.extend(spans)
            return SpanExportResult.SUCCESS

    spans = OtlpSpans(Hanging(raises=False))
    tracer = Tracer(spans, 1.0, time.monotonic)
    for _ in range(5000):
        begun(tracer).end(ended())
    assert 5000 - 1024 - 512 <= spans.lost <= 5000 - 1024
    lost = spans.lost
    for _ in range(512):
        own = tracer.begin(None)
        assert own is not None
        own.end(ended())
    assert spans.lost == lost, "callers who sample all of theirs leave room for what the gateway samples"
    for _ in range(5000):
        own = tracer.begin(None)
        assert own is not None
        own.end(ended())
    assert 10_512 - 2048 - 512 <= spans.lost <= 10_512 - 2048
    free.set()
    spans.close()
    assert len(taken) + spans.lost == 10_512


def test_a_collector_that_is_not_there_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    spans = open_otlp_spans("http://127.0.0.1:9")
    begun(Tracer(spans, 1.0, time.monotonic)).end(ended())
    spans.close()
    began_s = time.monotonic()
    while not spans.lost and time.monotonic() - began_s < 10:
        time.sleep(0.01)
    assert spans.lost == 1


def test_of_an_answer_that_does_not_end_little_is_read() -> None:
    sent, is_over = 0, threading.Event()

    def endless(asked: AskedRequest) -> None:
        nonlocal sent
        asked.send_response(200)
        asked.end_headers()
        try:
            while sent < 2**26:
                sent += asked.wfile.write(bytes(2**16))
        except OSError:
            pass
        is_over.set()

    with http_server(endless) as url:
        spans = open_otlp_spans(url)
        begun(Tracer(spans, 1.0, time.monotonic)).end(ended())
        spans.close()
        assert is_over.wait(10)
    assert sent < 2**24  # what the kernel keeps for the two


def test_a_collector_that_sends_elsewhere_takes_no_spans(caplog: pytest.LogCaptureFixture) -> None:
    with http_server(lambda asked: asked.answer(302, location="/login")) as url:
        spans = open_otlp_spans(url)
        begun(Tracer(spans, 1.0, time.monotonic)).end(ended())
        spans.close()
    assert spans.lost == 1


@pytest.mark.parametrize("path", ["", "/", "/v1/traces", "/v1/traces/"])
def test_spans_go_to_one_path_however_the_endpoint_is_written(path: str) -> None:
    paths = list[str]()

    def taken(asked: AskedRequest) -> None:
        paths.append(asked.path)
        asked.answer(200)

    with http_server(taken) as url:
        spans = open_otlp_spans(url + path)
        begun(Tracer(spans, 1.0, time.monotonic)).end(ended())
        spans.close()
    assert paths == ["/v1/traces"]
