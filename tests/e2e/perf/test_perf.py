"""Every scenario of `perf/` runs for seconds, on the shipped configuration: here those of one gateway; others in `test_perf_*.py`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perf.chaos.report import Report as ChaosReport
from perf.chaos.run import Run as ChaosRun
from perf.chaos_jobs.report import Report as ChaosJobsReport
from perf.floods.report import Report as FloodsReport
from perf.scenarios import SCENARIOS
from perf.soak.report import BEFORE
from perf.soak.report import Report as SoakReport
from tests.e2e.perf import test_perf_fleet, test_perf_models
from tests.e2e.perf.scenario_runs import ONE_ROUND, TIMEOUT_S, carry_out, run

_REFUSED_MS = 5_000

QUICK_DRILLS = ("gateway freezes", "gateway is told to stop", "Redis is slow", "a client floods")
"""On one site, and of those that no other test carries out."""
OTHER_DRILLS = ("a region dies", "the only generative stub dies")


def the_one_who_does_no_harm_is_answered(report: FloodsReport) -> None:
    for runs in report.runs.values():
        assert all(0 < min(run.http_p50_ms, run.grpc_p50_ms) <= max(run.http_p50_ms, run.grpc_p50_ms) < _REFUSED_MS for run in runs)
    assert all(came["connections"] and came["sent_mib"] > 0 for came in report.result.more["floods"].values())


def unwhole(run: ChaosRun) -> float:
    """The streams that were not answered whole."""
    return run.streams_refused + run.streams_failed + run.streams_broken_off + run.streams_lost + run.streams_cut_short


def quick_drills_cost_nobody_a_request(report: ChaosReport) -> None:
    assert report.result.more["not_carried_out"] == {}
    found = {case.drill: run for case, runs in report.runs.items() for run in runs}
    assert found.keys() == {*QUICK_DRILLS, *OTHER_DRILLS}
    said = report.result.more["said"]
    assert {name: (found[name].failed, unwhole(found[name])) for name in QUICK_DRILLS} == dict.fromkeys(QUICK_DRILLS, (0, 0)), said
    assert {name: found[name].failed_repeatable - found[name].refused_repeatable for name in OTHER_DRILLS} == dict.fromkeys(OTHER_DRILLS, 0)
    assert {name: run.streams_lost + run.streams_cut_short for name, run in found.items()} == dict.fromkeys(found, 0), said
    assert all(run.asked > 0 and run.streams > 0 for run in found.values())


def no_job_is_lost(report: ChaosJobsReport) -> None:
    assert [target for target in report.targets() if not target.is_met(report.figures()[target.figure])] == [], report.result.more["said"]
    (run,) = next(iter(report.runs.values()))
    assert run.accepted > 100
    assert run.lines > 0
    assert run.faults > 0


def callers_are_answered_in_a_soak(report: SoakReport) -> None:
    figures, runs = report.figures(), {case.part: run for case, of_case in report.runs.items() for run in of_case}
    assert all(run.answers > 0 for run in runs.values()), report.result.more["said"]
    assert runs[BEFORE].left > 0
    assert figures["requests"] > 50
    assert {f"{kind}_{name}_times" for kind in ("gateway", "triton") for name in ("mib", "descriptors", "threads")} <= figures.keys()


RUNS = [
    run("smoke", *ONE_ROUND, "--requests", "50"),
    run(
        "gateway", *ONE_ROUND, "--seconds", "0.3", "--connections", "2", "--sizes", "1536", "--peers", "nginx", "starlette-aiohttp",
        "fastapi-httpx", "grpc-aio", "grpc-aio-to-http", "tidegate", "tidegate-unix",
    ),
    run("processes", *ONE_ROUND, "--seconds", "0.3", "--connections", "2", "--sizes", "1536"),
    run("waiting", *ONE_ROUND, "--seconds", "0.3", "--requests", "40", "--upload-mib", "8", "--only", "grpc"),
    run("floods", *ONE_ROUND, "--seconds", "0.3", "--only", "reset at once", "1,000 outputs", check=the_one_who_does_no_harm_is_answered),
    run("tenants", *ONE_ROUND, "--seconds", "0.5", "--settle-s", "0.5", "--callers", "2", "--flood", "5", "--models", "batches"),
    run(
        "soak", "--minutes", "0.1", "--spike-s", "1", "--times", "4", "--peak-s", "0.5", "--cold-every-s", "1",
        check=callers_are_answered_in_a_soak,
    ),
    run("cache-hits", *ONE_ROUND, "--seconds", "0.3", "--connections", "2"),
    run(
        "chaos", *ONE_ROUND, *QUICK_DRILLS, *OTHER_DRILLS, "--scale", "0.2", "--pause-s", "0.02",
        check=quick_drills_cost_nobody_a_request,
    ),
    run("chaos-jobs", "jobs while everything dies", "--jobs", "120", "--fault-s", "5", check=no_job_is_lost),
]  # fmt: skip


@pytest.mark.timeout(2 * TIMEOUT_S)
@pytest.mark.parametrize(("name", "flags", "check"), RUNS)
def test_scenario(name: str, flags: tuple[str, ...], check: Callable[[Any], None], tmp_path: Path) -> None:
    carry_out(name, flags, check, tmp_path)


def test_every_scenario_has_a_run() -> None:
    runs = [*RUNS, *test_perf_fleet.RUNS, *test_perf_models.RUNS]
    assert {parameters.values[0] for parameters in runs} == SCENARIOS.keys()
