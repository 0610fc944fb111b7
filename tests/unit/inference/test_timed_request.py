"""Times of a request, as the header `server-timing` of its answer tells them."""

from __future__ import annotations

import pytest

from control_plane.core.infer_call import CacheStatus
from control_plane.inference.timed_request import times_ms
from control_plane.telemetry.tracing import RequestTrace, TracedEnd


class Sink:
    def export(self, trace: RequestTrace, ended: TracedEnd) -> None: ...


class Clock:
    now_s = 10.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def trace(clock: Clock) -> RequestTrace:
    return RequestTrace(Sink(), 1, None, now_s=clock, new_id=lambda bits: 1)


def times(trace: RequestTrace, *, ended_s: float) -> dict[str, float]:
    return {name: pytest.approx(value, abs=1e-6) for name, value in times_ms(trace, 10.0, ended_s).items()}


def test_the_wait_for_a_slot_and_the_time_at_the_server(trace: RequestTrace, clock: Clock) -> None:
    clock.now_s = 10.5
    trace.waited("queue", 10.1)
    trace.has_slot()
    attempt = trace.begin_attempt("a")
    clock.now_s = 12.5
    trace.end_attempt(attempt, "answered", is_failed=False)
    assert times(trace, ended_s=12.75) == {"total": 2750.0, "wait": 400.0, "server": 2000.0}


def test_between_two_attempts_it_waits(trace: RequestTrace, clock: Clock) -> None:
    trace.has_slot()
    first = trace.begin_attempt("a")
    clock.now_s = 11.0
    trace.end_attempt(first, "UpstreamUnavailable", is_failed=True)
    clock.now_s = 13.0
    second = trace.begin_attempt("b")
    clock.now_s = 14.0
    trace.end_attempt(second, "answered", is_failed=False)
    assert times(trace, ended_s=14.0) == {"total": 4000.0, "wait": 2000.0, "server": 2000.0}


def test_two_attempts_at_once_count_once(trace: RequestTrace, clock: Clock) -> None:
    first = trace.begin_attempt("a")
    clock.now_s = 11.0
    second = trace.begin_attempt("b")
    clock.now_s = 12.0
    trace.end_attempt(second, "answered", is_failed=False)
    assert times(trace, ended_s=12.5) == {"total": 2500.0, "wait": 0.0, "server": 2500.0}
    trace.end_attempt(first, "CancelledError", is_failed=True)
    assert times(trace, ended_s=12.5) == {"total": 2500.0, "wait": 0.0, "server": 2000.0}


def test_what_the_cache_had_was_at_no_server(trace: RequestTrace) -> None:
    trace.cache = CacheStatus.HIT
    assert times(trace, ended_s=10.25) == {"total": 250.0, "wait": 0.0}


def test_who_joined_an_equal_request_has_waited(trace: RequestTrace) -> None:
    trace.cache = CacheStatus.JOINED
    assert times(trace, ended_s=10.25) == {"total": 250.0, "wait": 250.0}
