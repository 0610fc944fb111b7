"""Traces of sampled requests: the times that the gateway takes of each one, from which `adapters/otlp` makes spans at its end.

Sampling is parent-based: the flag of a caller's `traceparent` decides, and of requests without one a ratio.

Source: W3C Trace Context.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from control_plane.core.infer_call import CacheStatus, Frontend, Outcome

TRACEPARENT = "traceparent"

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_MAX_CHARS = 55
_SAMPLED = 1
_MAX_PARTS = 64
"""Parts that are kept of one request: a flood of faults must not become one of spans."""
_MIN_WAIT_S = 0.001
"""Shortest wait that gets a span: every request takes some microseconds there."""


@dataclass(slots=True)
class TracePart:
    """One part of a request's time: a wait, or an attempt at a server."""

    name: str
    began_s: float
    ended_s: float | None = None
    """None while it lasts; it then ends with the request."""
    span_id: int = 0
    is_attempt: bool = False
    server: str = ""
    result: str = ""
    """Result of an attempt: an outcome (`core/infer_call.Outcome`), or the name of the error that ended it."""
    is_failed: bool = False


@dataclass(frozen=True, slots=True)
class TracedEnd:
    """Attributes of a traced request that has ended, from which its server span is made."""

    model: str
    """Name of a model that exists, or `core/model.UNKNOWN_MODEL`."""
    route: str
    """Name of a route that exists; empty where the request named none."""
    tenant: str
    frontend: Frontend
    outcome: Outcome
    status: int | None
    server: str
    request_id: str
    began_s: float
    ended_s: float


class SpanSink(Protocol):
    """Exporter of ended traces (port): `telemetry/adapters/otlp`."""

    def export(self, trace: RequestTrace, ended: TracedEnd) -> None:
        """Export the spans of a request that has ended; never waits, and never raises."""


class Spans(SpanSink, Protocol):
    """Exporter of ended traces, as its owner sees it."""

    @property
    def lost(self) -> int:
        """Spans that the collector did not take, or not soon enough."""

    def close(self) -> None:
        """Send what waits, for two seconds at most; to be called in a thread."""


class RequestTrace:
    """Trace of one request, with the ids of its spans."""

    __slots__ = (
        "_free_s",
        "_new_id",
        "_now_s",
        "_running_attempts",
        "_sink",
        "cache",
        "is_sampled",
        "parent_id",
        "parts",
        "span_id",
        "trace_id",
    )

    def __init__(
        self,
        sink: SpanSink,
        trace_id: int,
        parent_id: int | None,
        *,
        now_s: Callable[[], float],
        new_id: Callable[[int], int],
        is_sampled: bool = True,
    ) -> None:
        """`parent_id` is the caller's span; None: the request begins the trace. Of one that is not sampled servers are not told."""
        self.is_sampled = is_sampled
        self.trace_id, self.parent_id = trace_id, parent_id
        self._sink, self._now_s, self._new_id = sink, now_s, new_id
        self.span_id = new_id(64)
        self.cache: CacheStatus | None = None
        self.parts: list[TracePart] = []
        self._running_attempts = 0
        self._free_s = 0.0
        """Since when nothing but a server is missing."""

    def waited(self, name: str, began_s: float) -> None:
        """Record a wait that ends now, if it was one."""
        now_s = self._now_s()
        if now_s - began_s >= _MIN_WAIT_S:
            self._keep(TracePart(name, began_s, now_s, self._new_id(64)))

    def has_slot(self) -> None:
        """Note that the request has its model's slot, or needs none, so that from now on it waits for a server."""
        self._free_s = self._now_s()

    def begin_attempt(self, server: str) -> TracePart:
        """Record that the request is sent to a server now, and before it the wait for that server: a load, or a restart."""
        if not self._running_attempts and self._free_s:
            self.waited("wait for server", self._free_s)
        self._running_attempts += 1
        attempt = TracePart("attempt", self._now_s(), span_id=self._new_id(64), is_attempt=True, server=server)
        self._keep(attempt)
        return attempt

    def end_attempt(self, attempt: TracePart, result: str, *, is_failed: bool) -> None:
        """Record what came of an attempt, which ends now."""
        self._running_attempts -= 1
        attempt.result, attempt.is_failed = result, is_failed
        self._free_s = attempt.ended_s = self._now_s()

    def traceparent_of(self, attempt: TracePart) -> bytes:
        """The `traceparent` of the request to a server: its spans hang beneath the attempt's."""
        return b"00-%032x-%016x-01" % (self.trace_id, attempt.span_id)

    def end(self, ended: TracedEnd) -> None:
        """Hand the trace on for export."""
        self._sink.export(self, ended)

    def _keep(self, part: TracePart) -> None:
        if len(self.parts) < _MAX_PARTS:
            self.parts.append(part)


class Sampler(Protocol):
    """Sampler of requests, as the inference path asks it: `Tracer`, or that of one request."""

    def begin(self, traceparent: str | None) -> RequestTrace | None:
        """Begin the trace of a request with this `traceparent`; None: it is not sampled."""


@dataclass(slots=True)
class Tracer:
    """Sampler of requests: begins a trace for each that is sampled."""

    sink: SpanSink
    ratio: float
    """Part (0 to 1) of the requests without a `traceparent` that is sampled."""
    now_s: Callable[[], float]
    """The loop's time."""
    random: random.Random = field(default_factory=random.Random)

    def begin(self, traceparent: str | None) -> RequestTrace | None:
        """Begin the trace of a request with this `traceparent`; None: it is not sampled."""
        parent = None if traceparent is None else _parsed(traceparent)
        if parent is None:
            return self._begin(self.new_id(128), None) if self.random.random() < self.ratio else None
        trace_id, parent_id, flags = parent
        return self._begin(trace_id, parent_id) if flags & _SAMPLED else None

    def new_id(self, bits: int) -> int:
        """A random id, which is not zero: that would be none."""
        return self.random.getrandbits(bits) or 1

    def _begin(self, trace_id: int, parent_id: int | None) -> RequestTrace:
        return RequestTrace(self.sink, trace_id, parent_id, now_s=self.now_s, new_id=self.new_id)


def _parsed(traceparent: str) -> tuple[int, int, int] | None:
    """The trace's id, the caller's span and the flags; None where the field is not valid, as if it were not there."""
    value = traceparent.strip()
    found = _TRACEPARENT.match(value)
    # A later version may have more fields behind these.
    if found is None or (len(value) > _MAX_CHARS and (value.startswith("00") or value[_MAX_CHARS] != "-")):
        return None
    trace_id, parent_id, flags = (int(each, 16) for each in found.groups())
    return (trace_id, parent_id, flags) if trace_id and parent_id else None
