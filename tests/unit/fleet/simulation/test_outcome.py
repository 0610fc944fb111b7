"""Quantiles are by nearest rank, and refused requests are within no limit."""

from __future__ import annotations

from math import isnan

import pytest

from control_plane.fleet.simulation.outcome import SimulationResult


def outcome(*latencies_s: float, refused: int = 0) -> SimulationResult:
    made = SimulationResult()
    for latency_s in latencies_s:
        made.answer(latency_s)
    made.refused = refused
    return made


@pytest.mark.parametrize(("part", "latency_s"), [(0.0, 1), (0.25, 1), (0.26, 2), (0.5, 2), (0.75, 3), (0.99, 4), (1.0, 4)])
def test_quantiles(part: float, latency_s: float) -> None:
    assert outcome(3, 1, 4, 2).quantile_s(part) == latency_s


def test_within() -> None:
    assert outcome(3, 1, 4, 2).part_within(3) == 0.75
    assert outcome(3, 1, 4, 2, refused=4).part_within(3) == 0.375
    assert outcome(0.1 + 0.2).part_within(0.3) == 1, "a sum of floats"


def test_it_can_be_read_in_between() -> None:
    made = outcome(2)
    assert made.quantile_s(1) == 2
    made.answer(5)
    assert made.quantile_s(1) == 5


def test_nothing() -> None:
    assert isnan(outcome().quantile_s(0.5))
    assert isnan(outcome().part_within(1))
    assert outcome(refused=1).part_within(1) == 0
