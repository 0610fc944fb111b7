"""Spans that stay in memory, by the SDK's own exporter."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from control_plane.telemetry.adapters.otlp import OtlpSpans
from control_plane.telemetry.tracing import Tracer


class Spans:
    """A tracer, and the spans that it led to."""

    def __init__(self, *, ratio: float = 1.0, now_s: Callable[[], float] = time.monotonic) -> None:
        self._exporter = InMemorySpanExporter()
        self.sink = OtlpSpans(self._exporter, now_s=now_s)
        self.tracer = Tracer(self.sink, ratio, now_s, random.Random(1))

    def all(self) -> tuple[ReadableSpan, ...]:
        """Every span so far; none can be made after this."""
        self.sink.close()
        return self._exporter.get_finished_spans()

    def by_name(self) -> tuple[ReadableSpan, list[ReadableSpan], list[ReadableSpan]]:
        """The only request's span, its attempts and its waits."""
        spans = self.all()
        (server,) = [each for each in spans if each.name.startswith("infer ")]
        attempts = [each for each in spans if each.name == "attempt"]
        return server, attempts, [each for each in spans if each is not server and each not in attempts]
