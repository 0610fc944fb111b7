"""Profiles of requests with several responses, over a gateway whose clock is the test's."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from control_plane.core.errors import InvalidRequest
from control_plane.profiling.streams import StreamProfile, measure_streams
from tests.unit.profiling.stages_bench import statistics

PAUSES_S = (0.5, 0.1, 0.3)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Gateway:
    """Gateway before a model that answers with three responses."""

    def __init__(self, clock: Clock, pauses_s: Sequence[float], tokens: Sequence[int | None], told_ms: Mapping[str, float]) -> None:
        self.clock, self.pauses_s, self.tokens, self.told_ms = clock, pauses_s, tokens, told_ms
        self.computed = 0

    def ping(self) -> None: ...

    def infer(self, request: bytes) -> Mapping[str, float]:
        raise AssertionError("the model takes streams only")

    def stream(self, request: bytes, heard: Callable[[int | None], None]) -> Mapping[str, float]:
        self.computed += 1
        for pause_s, tokens in zip(self.pauses_s, self.tokens, strict=False):
            self.clock.now_s += pause_s
            heard(tokens)
        return self.told_ms

    def config(self) -> Mapping[str, Any]:
        return {}

    def statistics(self, model: str) -> Any:
        each = dict.fromkeys(("compute_input", "compute_infer", "compute_output"), 0.0)
        return statistics(self.computed, 1.0 * self.computed, queue=100.0 * self.computed, **each)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    return clock


def measured(
    clock: Clock, *, pauses_s: Sequence[float] = PAUSES_S, tokens: Sequence[int | None] = (1, 2, 0), told_ms: Mapping[str, float] = {}
) -> StreamProfile:
    return measure_streams([Gateway(clock, pauses_s, tokens, told_ms)], "m", [b""] * 5)


def test_the_first_response_and_each_further_one(clock: Clock) -> None:
    found = measured(clock)
    assert (found.requests, found.responses, found.tokens, found.computed) == (4, 12, 12, 4)
    assert found.following is not None
    assert found.first.ms == pytest.approx(500.0)
    assert found.following.ms == pytest.approx(200.0)
    assert (found.following.p50_ms, found.following.p99_ms) == (pytest.approx(100.0), pytest.approx(300.0))
    assert found.whole.ms == pytest.approx(900.0)


def test_the_first_response_is_divided_as_the_gateway_tells(clock: Clock) -> None:
    found = measured(clock, told_ms={"total": 450.0, "wait": 50.0, "server": 350.0})
    assert {each.name: pytest.approx(each.ms) for each in found.stages} == {
        "network and HTTP": 50.0,
        "gateway: waiting": 50.0,
        "gateway: its own work": 50.0,
        "queue": 100.0,
        "way to Triton, and the model": 250.0,
    }


def test_what_a_model_does_not_count_is_no_number(clock: Clock) -> None:
    assert measured(clock, tokens=(1, None, 1)).tokens is None


def test_an_answer_of_one_response_has_no_further_one(clock: Clock) -> None:
    found = measured(clock, pauses_s=(0.5,))
    assert (found.following, found.responses) == (None, 4)


def test_an_answer_without_a_response_is_told(clock: Clock) -> None:
    with pytest.raises(InvalidRequest, match="without any response"):
        measured(clock, pauses_s=())
