"""Answers a request whose caller asks where its time goes: it is traced, whether or not it is sampled, and its answer tells the times.

The frontends call it in place of `InferenceService.infer` and `generate`, so that other requests pay nothing for it.
"""

from __future__ import annotations

import time
from copy import copy
from typing import TypeVar

from control_plane.core.infer_call import CacheStatus
from control_plane.inference.in_flight.recorded_stream import RecordedStream
from control_plane.inference.inference import InferenceService
from control_plane.inference.requests import GenerateRequest, InferRequest
from control_plane.protocols.http1 import HttpAnswer, with_header
from control_plane.protocols.server_timing import SERVER, SERVER_TIMING, TOTAL, WAIT, write_timing
from control_plane.telemetry.tracing import RequestTrace, Sampler, TracedEnd, TracePart

AnswerT = TypeVar("AnswerT")


async def timed(inference: InferenceService, request: InferRequest[AnswerT]) -> AnswerT:
    """Answer a request as `infer` does, and add its times to the answer. Raises as `infer` does."""
    stopwatch = _Stopwatch(inference)
    answer = await stopwatch.inference.infer(request)
    return request.with_field(answer, SERVER_TIMING, stopwatch.read())


async def timed_stream(inference: InferenceService, request: GenerateRequest) -> HttpAnswer | RecordedStream:
    """Answer a request as `generate` does, and add its times to the head of the answer: those to the first piece of a stream. Raises
    as `generate` does."""
    stopwatch = _Stopwatch(inference)
    answer = await stopwatch.inference.generate(request)
    line = f"{SERVER_TIMING}: {stopwatch.read()}".encode()
    return with_header(answer, line) if isinstance(answer, HttpAnswer) else answer.with_header(line)


def times_ms(trace: RequestTrace, began_s: float, ended_s: float) -> dict[str, float]:
    """The gateway's time for a request (`total`), what of it the request has waited in the gateway (`wait`), and what it was at a
    server or on the way to one (`server`; only where it was sent). Waits below a millisecond are in neither.
    """
    attempts = [each for each in trace.parts if each.is_attempt]
    waits = [each for each in trace.parts if not each.is_attempt]
    times_s = {TOTAL: ended_s - began_s, WAIT: sum(_length_s(each, ended_s) for each in waits)}
    if trace.cache is CacheStatus.JOINED:
        times_s[WAIT] = times_s[TOTAL]  # an equal request was at the server
    elif attempts:
        sent_s = attempts[0].began_s
        back_s = max(ended_s if each.ended_s is None else each.ended_s for each in attempts)
        times_s[SERVER] = back_s - sent_s - sum(_length_s(each, ended_s) for each in waits if each.began_s >= sent_s)
    return {name: value * 1e3 for name, value in times_s.items()}


class _Stopwatch:
    """Times of one request, from now on, if it is made of its `inference`."""

    def __init__(self, inference: InferenceService) -> None:
        self.inference, self._sampler = copy(inference), _EachSampled(inference.tracer)
        self.inference.tracer = self._sampler
        self._began_s = time.monotonic()

    def read(self) -> str:
        trace = self._sampler.trace
        status = None if trace.cache is None else trace.cache.value
        return write_timing(times_ms(trace, self._began_s, time.monotonic()), status)


class _EachSampled:
    """Sampler of one request, which is traced in any case: for the ordinary sampler's exporter, or for nobody but its caller."""

    def __init__(self, ordinary: Sampler | None) -> None:
        self._ordinary = ordinary
        self.trace = RequestTrace(_NOWHERE, 1, None, now_s=time.monotonic, new_id=lambda bits: 1, is_sampled=False)

    def begin(self, traceparent: str | None) -> RequestTrace:
        sampled = None if self._ordinary is None else self._ordinary.begin(traceparent)
        self.trace = sampled or self.trace
        return self.trace


class _Nowhere:
    """Exporter of traces that nobody collects."""

    def export(self, trace: RequestTrace, ended: TracedEnd) -> None: ...


_NOWHERE = _Nowhere()


def _length_s(part: TracePart, ended_s: float) -> float:
    return (ended_s if part.ended_s is None else part.ended_s) - part.began_s
