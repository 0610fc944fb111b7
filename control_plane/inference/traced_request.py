"""Wrapper of a sampled request, which records each send as an attempt in the request's trace.

`inference/inference` puts it in the request's place, so that other requests pay nothing for tracing, and no dispatcher knows of
it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar, cast

from control_plane.core.infer_call import Outcome
from control_plane.inference.in_flight.running_request import RunningRequest
from control_plane.inference.requests import FrontendRequest
from control_plane.telemetry.tracing import TRACEPARENT, RequestTrace, Sampler, TracePart
from control_plane.triton.ports import Slot, Upstream

RequestT = TypeVar("RequestT", bound=FrontendRequest)


def traced(tracer: Sampler, request: RequestT, running: RunningRequest) -> RequestT:
    """Return the request, in a form that records its sends if it is sampled."""
    trace = running.trace = tracer.begin(request.field(TRACEPARENT))
    return request if trace is None else cast("RequestT", _TracedRequest(request, running, trace))


class _TracedRequest:
    """Decorator of `inference/requests.InferRequest` and `GenerateRequest` that records each send, and tells the server
    which span its own belong to."""

    def __init__(self, request: Any, running: RunningRequest, trace: RequestTrace) -> None:
        self._request = request
        self._running = running
        self._trace = trace

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)

    @property
    def slot(self) -> Slot | None:
        slot: Slot | None = self._request.slot
        return slot

    @slot.setter
    def slot(self, slot: Slot | None) -> None:
        if self._request.slot is None:
            self._trace.has_slot()
        self._request.slot = slot

    def send(self, server: Upstream, *, timeout_s: float) -> Awaitable[Any]:
        return self._attempted("send", server, timeout_s)

    def stream(self, server: Upstream, *, timeout_s: float) -> Awaitable[Any]:
        return self._attempted("stream", server, timeout_s)

    def _attempted(self, verb: str, server: Upstream, timeout_s: float) -> Awaitable[Any]:
        # A send that races against another one is its own slot, and may go to another server.
        name: str = getattr(self._request.slot, "server", "") or getattr(self._running, "server", "")
        attempt = self._trace.begin_attempt(name)
        sent = self._request.with_traceparent(self._trace.traceparent_of(attempt)) if self._trace.is_sampled else self._request
        return self._answered(partial(getattr(sent, verb), server, timeout_s=timeout_s), attempt)

    async def _answered(self, send: Callable[[], Awaitable[Any]], attempt: TracePart) -> Any:
        try:
            answer = await send()
        except BaseException as exc:
            self._trace.end_attempt(attempt, type(exc).__name__, is_failed=True)
            raise
        outcome: Outcome = self._request.outcome(answer)
        self._trace.end_attempt(attempt, outcome.value, is_failed=outcome is not Outcome.ANSWERED)
        return answer
