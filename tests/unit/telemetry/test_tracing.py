from __future__ import annotations

import random

import pytest

from control_plane.core.infer_call import CacheStatus, Frontend, Outcome
from control_plane.telemetry.tracing import RequestTrace, TracedEnd, Tracer

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Sink:
    def __init__(self) -> None:
        self.ended: list[tuple[RequestTrace, TracedEnd]] = []

    def export(self, trace: RequestTrace, ended: TracedEnd) -> None:
        self.ended.append((trace, ended))


class Clock:
    now_s = 10.0

    def __call__(self) -> float:
        return self.now_s


def tracer(ratio: float = 0.0, clock: Clock | None = None) -> Tracer:
    return Tracer(Sink(), ratio, clock or Clock(), random.Random(7))


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_the_callers_flag_decides(ratio: float) -> None:
    sampled = tracer(ratio).begin(f"00-{TRACE}-{PARENT}-01")
    assert sampled is not None
    assert (sampled.trace_id, sampled.parent_id) == (int(TRACE, 16), int(PARENT, 16))
    assert tracer(ratio).begin(f"00-{TRACE}-{PARENT}-00") is None


def test_without_a_traceparent_the_ratio_decides() -> None:
    own = tracer(0.25)
    begun = [each for each in (own.begin(None) for _ in range(4000)) if each is not None]
    assert 900 < len(begun) < 1100
    assert all(each.parent_id is None for each in begun)
    assert len({each.trace_id for each in begun}) == len(begun)


@pytest.mark.parametrize(
    "field",
    [
        pytest.param("", id="empty"),
        pytest.param(f"00-{TRACE.upper()}-{PARENT}-01", id="upper case"),
        pytest.param(f"00-{'0' * 32}-{PARENT}-01", id="no trace"),
        pytest.param(f"00-{TRACE}-{'0' * 16}-01", id="no span"),
        pytest.param(f"ff-{TRACE}-{PARENT}-01", id="a version that is none"),
        pytest.param(f"00-{TRACE}-{PARENT}-01-more", id="more fields than version 00 has"),
        pytest.param(f"01-{TRACE}-{PARENT}-01more", id="flags of another length"),
        pytest.param(f"00-{TRACE}-{PARENT}-01, 00-{TRACE}-{PARENT}-01", id="twice"),
        pytest.param("0" * 100_000, id="very long"),
    ],
)
def test_what_is_no_traceparent_counts_as_none(field: str) -> None:
    assert tracer(0.0).begin(field) is None
    begun = tracer(1.0).begin(field)
    assert begun is not None
    assert begun.parent_id is None


def test_a_later_version_may_have_more_fields() -> None:
    assert tracer().begin(f"01-{TRACE}-{PARENT}-01-more") is not None


def test_a_servers_spans_hang_beneath_the_attempt() -> None:
    trace = tracer().begin(f"00-{TRACE}-{PARENT}-01")
    assert trace is not None
    first, second = trace.begin_attempt("a"), trace.begin_attempt("b")
    assert trace.traceparent_of(first) == f"00-{TRACE}-{first.span_id:016x}-01".encode()
    assert len({first.span_id, second.span_id, trace.span_id}) == 3


def test_the_wait_for_a_server_is_a_part_of_its_own() -> None:
    clock = Clock()
    trace = tracer(1.0, clock).begin(None)
    assert trace is not None
    trace.has_slot()
    clock.now_s += 3.0
    attempt = trace.begin_attempt("a")
    clock.now_s += 1.0
    trace.end_attempt(attempt, "UpstreamUnavailable", is_failed=True)
    clock.now_s += 2.0
    trace.begin_attempt("b")
    trace.begin_attempt("c")
    told = [(each.name, each.server, each.began_s, each.ended_s) for each in trace.parts]
    assert told == [
        ("wait for server", "", 10.0, 13.0),
        ("attempt", "a", 13.0, 14.0),
        ("wait for server", "", 14.0, 16.0),
        ("attempt", "b", 16.0, None),
        ("attempt", "c", 16.0, None),
    ]


def test_a_flood_of_attempts_is_cut_off() -> None:
    trace = tracer(1.0).begin(None)
    assert trace is not None
    for _ in range(1000):
        trace.begin_attempt("a")
    assert len(trace.parts) < 100


def test_the_end_is_handed_on() -> None:
    own = tracer(1.0)
    trace = own.begin(None)
    assert trace is not None
    trace.cache = CacheStatus.HIT
    ended = TracedEnd("m", "", "", Frontend.HTTP, Outcome.ANSWERED, 200, "", "", 1.0, 2.0)
    trace.end(ended)
    assert isinstance(own.sink, Sink)
    assert own.sink.ended == [(trace, ended)]
