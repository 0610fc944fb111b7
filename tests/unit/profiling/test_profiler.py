"""Profiles of requests, over a gateway that counts as Triton does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from control_plane.core.errors import InvalidRequest
from control_plane.profiling.profiler import measure
from control_plane.profiling.stages import Stage
from tests.unit.profiling.stages_bench import statistics


class Gateway:
    """Gateway before an ensemble of two steps; with `caches` it computes equal requests once."""

    def __init__(self, *, caches: bool = False, steps: tuple[str, ...] = ("a", "b"), others: int = 0) -> None:
        self.caches = caches
        self.steps = steps
        self.others = others
        self.pings = self.computed = 0
        self.asked: list[bytes] = []
        self.asked_about: list[str] = []

    def ping(self) -> None:
        self.pings += 1

    def infer(self, request: bytes) -> Mapping[str, float]:
        self.computed += not (self.caches and request in self.asked)
        self.asked.append(request)
        return {"total": 0.0, "wait": 0.0, "server": 0.0}

    def stream(self, request: bytes, heard: Callable[[int | None], None]) -> Mapping[str, float]:
        raise AssertionError("no request of these is streamed")

    def config(self) -> Mapping[str, Any]:
        return {"ensemble_scheduling": {"step": [{"model_name": name} for name in self.steps]}} if self.steps else {}

    def statistics(self, model: str) -> Any:
        self.asked_about.append(model)
        self.computed += self.others
        each = dict.fromkeys(("queue", "compute_input", "compute_infer", "compute_output"), 0.0)
        return statistics(self.computed, 0.001 * self.computed, **each)


def requests(count: int) -> list[bytes]:
    return [b'{"inputs": [%d]}' % number for number in range(count)]


def test_the_first_request_warms_up_and_each_other_counts() -> None:
    gateway = Gateway()
    found = measure([gateway], "m", requests(11))
    assert (found.requests, found.computed, found.repeat_ms, found.concurrency) == (10, 10, None, 1)
    assert gateway.asked[:11] == requests(11)
    assert {"m", "a", "b"} == set(gateway.asked_about)
    assert [each.name for each in found.stages if each.name.startswith("b: ")] == ["b: queue", "b: inputs", "b: computing", "b: outputs"]
    assert 0 < found.p50_ms <= found.p99_ms
    assert min(found.total_ms, found.requests_per_s, found.client_busy) > 0
    assert found.server == Stage("in Triton, and on the way there", 0.0, 0.0, 0.0)


def test_callers_share_the_requests_and_one_of_them_asks_what_triton_counted() -> None:
    first, *others = (Gateway() for _ in range(3))
    found = measure([first, *others], "m", requests(31))
    assert (found.requests, found.concurrency) == (30, 3)
    once = Counter(each for gateway in (first, *others) for each in gateway.asked if each != requests(1)[0])
    assert set(once.values()) == {1}
    assert len(once) == 30
    assert [gateway.pings for gateway in (first, *others)] == [0, 1, 1]
    assert not any(gateway.asked_about for gateway in others)


def test_of_many_requests_one_is_held_at_a_time() -> None:
    class Held(bytes):
        alive = most = 0

        def __init__(self) -> None:
            Held.alive += 1
            Held.most = max(Held.most, Held.alive)

        def __del__(self) -> None:
            Held.alive -= 1

    class Forgetting(Gateway):
        def infer(self, request: bytes) -> Mapping[str, float]:
            self.computed += 1
            return {}

    assert measure([Forgetting()], "m", (Held() for _ in range(11))).requests == 10
    assert Held.most <= 3  # the first is sent again at the end, and the next one is made while the last one's name is still bound


def test_what_is_sent_again_is_timed_where_a_cache_answers() -> None:
    assert (measure([Gateway(caches=True)], "m", requests(3)).repeat_ms or 0) > 0


def test_requests_of_others_and_of_the_cache_show_in_what_was_computed() -> None:
    assert measure([Gateway(steps=(), others=4)], "m", requests(6)).computed == 5 + 4
    assert measure([Gateway(steps=(), caches=True)], "m", [b'{"inputs": []}'] * 6).computed == 0


def test_a_model_that_is_loaded_anew_meanwhile_gives_no_negative_times() -> None:
    class Reloaded(Gateway):
        def infer(self, request: bytes) -> Mapping[str, float]:
            told = super().infer(request)
            if len(self.asked) == 3:
                self.computed = 0
            return told

    gateway = Reloaded(steps=())
    gateway.computed = 100
    with pytest.raises(InvalidRequest, match="was loaded anew meanwhile"):
        measure([gateway], "m", requests(11))
