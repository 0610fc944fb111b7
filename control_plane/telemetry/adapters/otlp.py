"""Spans of sampled requests, sent to an OpenTelemetry collector over OTLP/HTTP by the SDK's own thread.

The only module that imports OpenTelemetry, and only loaded where an endpoint is set. Attributes have the names of
OpenTelemetry's semantic conventions, and `tidegate.` before those that are ours.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from threading import Thread
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from control_plane.core.infer_call import CacheStatus, Frontend, Outcome
from control_plane.telemetry.tracing import RequestTrace, TracedEnd, TracePart

_log = logging.getLogger(__name__)

_SCOPE = InstrumentationScope("tidegate")
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_QUEUE, _BATCH, _EVERY_MS = 2048, 512, 2000
_OF_CALLERS = _QUEUE // 2
"""Part of the queue for requests that their callers have sampled: who samples all of his does not crowd out what the gateway samples."""
_TIMEOUT_S = 5.0
"""Longest that the SDK's thread waits for the collector."""
_CLOSE_S = 2.0
_MAX_CHARS = 128
_MOST_ANSWER_BYTES = 65_536
_FAILED = frozenset((Outcome.FAILED, Outcome.UNAVAILABLE, Outcome.DEADLINE_EXCEEDED))
_CACHE = {CacheStatus.JOINED: "shared"}
_RPC = {
    "rpc.system": "grpc",
    "rpc.service": "inference.GRPCInferenceService",
    "rpc.method": "ModelInfer",
}

Attributes = dict[str, str | int]


class OtlpSpans:
    """Exporter of spans (`telemetry/tracing.SpanSink`) of one process, with a bounded queue."""

    def __init__(self, exporter: SpanExporter, *, now_s: Callable[[], float] = time.monotonic) -> None:
        """`now_s` is the loop's time."""
        self._counting = _Counting(exporter)
        self._processor = BatchSpanProcessor(
            self._counting, max_queue_size=_QUEUE, schedule_delay_millis=_EVERY_MS, max_export_batch_size=_BATCH
        )
        self._resource = Resource.create({"service.name": "tidegate"})
        self._now_s = now_s
        self._made = self._dropped = 0

    @property
    def lost(self) -> int:
        """Spans that the collector did not take, or not soon enough."""
        return self._dropped + self._counting.lost

    def export(self, trace: RequestTrace, ended: TracedEnd) -> None:
        spans = 1 + len(trace.parts)
        most = _QUEUE if trace.parent_id is None else _OF_CALLERS
        if self._made + spans - self._counting.seen > most:
            self._dropped += spans
            return
        self._made += spans
        try:
            for span in self._spans(trace, ended):
                self._processor.on_end(span)
        except Exception:
            _log.exception("a request's spans could not be made")

    def close(self) -> None:
        """Send what waits, for two seconds at most; to be called in a thread."""
        closing = Thread(target=self._processor.shutdown, name="spans-shutdown", daemon=True)
        closing.start()
        closing.join(_CLOSE_S)
        if closing.is_alive():
            self._counting.shutdown()  # ends the wait before the next try

    def _spans(self, trace: RequestTrace, ended: TracedEnd) -> Iterator[ReadableSpan]:
        since_s = time.time() - self._now_s()
        make = partial(self._span, trace, since_s=since_s)
        for part in trace.parts:
            ended_s = ended.ended_s if part.ended_s is None else part.ended_s
            kind = SpanKind.CLIENT if part.is_attempt else SpanKind.INTERNAL
            yield make(
                part.name,
                part.span_id,
                trace.span_id,
                (part.began_s, ended_s),
                kind=kind,
                attributes=_of_part(part),
                is_failed=part.is_failed,
            )
        is_failed = ended.outcome in _FAILED or (ended.frontend is Frontend.HTTP and (ended.status or 0) >= 500)
        yield make(
            f"infer {ended.model}", trace.span_id, trace.parent_id, (ended.began_s, ended.ended_s),
            kind=SpanKind.SERVER, attributes=_of_request(trace, ended), is_failed=is_failed,
        )  # fmt: skip

    def _span(
        self,
        trace: RequestTrace,
        name: str,
        span_id: int,
        parent_id: int | None,
        times_s: tuple[float, float],
        *,
        since_s: float,
        kind: SpanKind,
        attributes: Attributes,
        is_failed: bool,
    ) -> ReadableSpan:
        began_s, ended_s = times_s
        is_remote = kind is SpanKind.SERVER
        parent = None if parent_id is None else SpanContext(trace.trace_id, parent_id, is_remote, _SAMPLED)
        return ReadableSpan(
            name=name,
            context=SpanContext(trace.trace_id, span_id, False, _SAMPLED),
            parent=parent,
            resource=self._resource,
            attributes=attributes,
            kind=kind,
            instrumentation_scope=_SCOPE,
            status=Status(StatusCode.ERROR if is_failed else StatusCode.UNSET),
            start_time=int((since_s + began_s) * 1e9),
            end_time=int((since_s + ended_s) * 1e9),
        )


def open_otlp_spans(endpoint: str) -> OtlpSpans:
    """Make the exporter to this collector, `http(s)://HOST[:PORT]`; the SDK reads `OTEL_EXPORTER_OTLP_HEADERS` itself."""
    # The SDK logs each failure, with the collector's own text; `_Counting` says it once.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    url = endpoint.rstrip("/").removesuffix("/v1/traces") + "/v1/traces"
    session = requests.Session()
    session.stream = True  # the SDK looks at no answer's body, and would still hold all of one that does not end
    session.hooks["response"].append(_end_answer)
    return OtlpSpans(OTLPSpanExporter(url, timeout=_TIMEOUT_S, session=session))


def _end_answer(response: requests.Response, **_: Any) -> None:
    """Read what leaves the connection free for the next batch. Raises RequestException: the collector sends elsewhere, which the
    SDK does not follow, and takes for success."""
    response.raw.read(_MOST_ANSWER_BYTES)
    response.close()
    if 300 <= response.status_code < 400:
        raise requests.RequestException(f"the collector sends elsewhere (HTTP {response.status_code})")


class _Counting(SpanExporter):
    """Exporter that counts what another one cannot send, and says so once until it can again."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._has_failed = False
        self.seen = self.lost = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.seen += len(spans)
        try:
            result = self._exporter.export(spans)
        except Exception:  # whatever it is, the SDK's thread has to go on
            result = SpanExportResult.FAILURE
        if result is SpanExportResult.FAILURE:
            self.lost += len(spans)
            if not self._has_failed:
                _log.warning("the OpenTelemetry collector takes no spans; requests go on, and tidegate_spans_lost_total counts")
        self._has_failed = result is SpanExportResult.FAILURE
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def _of_request(trace: RequestTrace, ended: TracedEnd) -> Attributes:
    found: Attributes = {
        "tidegate.model": ended.model,
        "tidegate.route": ended.route,
        "tidegate.tenant": ended.tenant,
        "tidegate.outcome": ended.outcome.value,
        "tidegate.server": ended.server,
        "tidegate.request_id": ended.request_id,
    }
    if trace.cache is not None:
        found["tidegate.cache"] = _CACHE.get(trace.cache, trace.cache.value)
    if ended.frontend is Frontend.HTTP:
        found["http.request.method"] = "POST"
        if ended.status is not None:
            found["http.response.status_code"] = ended.status
    else:
        found |= _RPC
        if ended.status is not None:
            found["rpc.grpc.status_code"] = ended.status
    return {name: value[:_MAX_CHARS] if isinstance(value, str) else value for name, value in found.items() if value != ""}


def _of_part(part: TracePart) -> Attributes:
    if not part.is_attempt:
        return {}
    return {"tidegate.server": part.server[:_MAX_CHARS], "tidegate.result": part.result or "unfinished"}
