"""Turns are A B A B, medians are by figure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from perf.measurement.interleaved import interleave, median_of


@dataclass(frozen=True)
class Figures:
    p50_ms: float
    throughput: float


def test_ways_take_turns() -> None:
    order: list[str] = []

    def measure(name: str) -> int:
        order.append(name)
        return len(order)

    assert interleave({name: partial(measure, name) for name in "ab"}, 2) == {"a": [1, 4], "b": [2, 3]}
    assert order == ["a", "b", "b", "a"]


def test_each_figure_has_its_own_median() -> None:
    runs = [Figures(1.0, 30.0), Figures(2.0, 10.0), Figures(9.0, 20.0)]
    assert median_of(runs) == Figures(2.0, 20.0)
