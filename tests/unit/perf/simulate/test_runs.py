"""A run is the same each time, and has the figures of its outcome."""

from __future__ import annotations

from dataclasses import replace
from math import isnan

import pytest

from control_plane.fleet.simulation.outcome import SimulationResult
from perf.simulate.__main__ import run
from perf.simulate.cases import Files
from perf.simulate.policies import POLICIES
from perf.simulate.report import Case, Run
from perf.simulate.traces import GenTd26


def test_figures_of_an_outcome() -> None:
    outcome = SimulationResult()
    for milliseconds in range(1, 1001):
        outcome.answer(milliseconds / 1000)
    outcome.loads, outcome.evictions, outcome.refused, outcome.max_held_bytes = 3, 2, 1000, 50
    made = Run.of(outcome, budget_bytes=100, bound_loads=1, took_s=2.0)
    assert made == Run(3, 2, 500.0, 990.0, 999.0, 0.05, 1000, 2000, 0.5, 1, 2.0)
    assert isnan(Run.of(SimulationResult(), budget_bytes=100, bound_loads=1, took_s=2.0).p99_ms)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_run_is_the_same_each_time(policy: str) -> None:
    files = Files(GenTd26([f"m{number % 31}" for number in range(600)], [float(number) for number in range(600)]))
    first, second = run(Case("4x5", policy), 1, files), run(Case("4x5", policy), 1, files)
    assert replace(first, took_s=0) == replace(second, took_s=0)
    assert first.requests == 600
    assert first.most_held_part <= 1
