"""Scenarios of `perf/` on fleets, rollouts and their simulations, each for seconds on the shipped configuration."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perf.budgets.report import DIAL
from perf.budgets.report import Case as BudgetsCase
from perf.budgets.report import Report as BudgetsReport
from perf.hedging.report import OFF_AGAIN, ON
from perf.measurement.report import Report
from perf.rollout_gates.report import Case as GatesCase
from perf.rollout_gates.report import Report as RolloutGatesReport
from tests.e2e.perf.scenario_runs import ONE_ROUND, TIMEOUT_S, carry_out, run


def rollouts_cost_nobody_a_request(report: Report) -> None:
    figures = report.figures()
    assert {name: figures[name] for name in ("failed", "misassigned", "wrong", "not_as_wanted", "not_caught")} == dict.fromkeys(
        ("failed", "misassigned", "wrong", "not_as_wanted", "not_caught"), 0
    )
    assert figures["asked"] > 200


def only_hedged_where_it_is_on(report: Report) -> None:
    for case, runs in report.runs.items():
        assert all(run.executions >= 1.0 and (case.way == ON or run.hedged == 0.0) for run in runs)
        assert any(math.isnan(run.foretold_executions) for run in runs) is (case.way == OFF_AGAIN)
    half = report.result.more["half"]
    assert 0.3 < half["hedged"] <= 0.7  # about half, of a few dozen
    assert half["more_processes"] == half["errors"] == 0


def who_has_no_time_is_answered_by_the_fast_model(report: BudgetsReport) -> None:
    assert 0.0 < report.median(BudgetsCase(DIAL, 2.0)).accurate < 1.0
    assert report.median(BudgetsCase(DIAL, 0.5)).refused == 0.0


def few_are_rolled_back_that_are_no_worse(report: RolloutGatesReport) -> None:
    assert report.figures()["false_rollbacks_percent"] <= 15, "3 of 20; the scenario itself has a target, of 10,000"
    assert report.median(GatesCase("fails always", "gates", False)).failed == 2


RUNS = [
    run(
        "fleet", *ONE_ROUND, "--requests", "20", "--seconds", "1", "--models", "3", "--servers", "2", "--room", "1.5", "--ways", "tidegate",
    ),
    run("nodes", *ONE_ROUND, "--seconds", "0.3", "--connections", "2", "--models", "3", "--rest-s", "0.5"),
    run(
        "hedging", *ONE_ROUND, "--requests", "250", "--learn", "400", "--works", "stragglers", "--loads", "0.2", "--half-s", "1",
        check=only_hedged_where_it_is_on,
    ),
    run("budgets", *ONE_ROUND, "--seconds", "1", "--loads", "0.5", "2", check=who_has_no_time_is_answered_by_the_fast_model),
    run(
        "rollouts", *ONE_ROUND, "--rollouts", "2", "--bad", "fails", "--weights", "2000", "--pause-s", "0.01", "--cost", "1",
        "--turn-s", "0.5", check=rollouts_cost_nobody_a_request,
    ),
    run("rollout-gates", "--alike", "20", "--worse", "2", "--ticks", "10", check=few_are_rolled_back_that_are_no_worse),
    run("eviction", "--requests", "3000", "--sizes", "10"),
    run("simulate", "--seeds", "1", "--cases", "8x5", "--policies", "round robin", "Tidegate"),
    run("prefetch", "--seeds", "1", "--cases", "own times", "--forecasts", "none", "idle times and successions", "clairvoyant"),
]  # fmt: skip


@pytest.mark.timeout(2 * TIMEOUT_S)
@pytest.mark.parametrize(("name", "flags", "check"), RUNS)
def test_scenario(name: str, flags: tuple[str, ...], check: Callable[[Any], None], tmp_path: Path) -> None:
    carry_out(name, flags, check, tmp_path)
