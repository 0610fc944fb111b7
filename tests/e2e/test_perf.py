"""Every scenario of `perf/` runs for seconds: on the shipped configuration, without an error, with a result that its report reads.

How fast anything was is not asked: a target that is missed on a busy machine is no defect.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perf.chaos.report import Report as ChaosReport
from perf.chaos_jobs.report import Report as ChaosJobsReport
from perf.embedding.report import Report as EmbeddingReport
from perf.floods.report import Report as FloodsReport
from perf.hedging.report import OFF_AGAIN, ON
from perf.jobs.report import BESIDE
from perf.jobs.report import Case as JobsCase
from perf.long_documents.report import FLASK
from perf.long_documents.report import SHIPPED as AS_SHIPPED
from perf.measurement.report import Report
from perf.repeats.report import NO_CACHE, SHIPPED, Case
from perf.rollout_gates.report import Case as GatesCase
from perf.rollout_gates.report import Report as RolloutGatesReport
from perf.scenarios import SCENARIOS
from perf.servers.processes import missing_packages
from tests.e2e.tidegate import PROJECT

_TIMEOUT_S = 300
_REFUSED_MS = 5_000


def run(name: str, *flags: str, check: Callable[[Any], None] = lambda report: None) -> Any:
    return pytest.param(name, flags, check, id=name)


def repeats_are_hits(report: EmbeddingReport) -> None:
    """Only with the response cache that is shipped, and only of texts that came before."""
    hits = {case.repeats: run.hit_ratio for case in report.runs if case.peer == "tidegate-http" for run in report.runs[case]}
    assert hits[0.3] > hits[0.0]
    assert report.result.more["served_variants"]


def copies_are_hits(report: Report) -> None:
    assert report.figures()["hits_percent"] == 50


def only_a_cache_has_hits(report: Report) -> None:
    assert report.median(Case(NO_CACHE)).hit_ratio == 0
    assert report.median(Case(SHIPPED)).hit_ratio > 0


def the_one_who_does_no_harm_is_answered(report: FloodsReport) -> None:
    for runs in report.runs.values():
        assert all(0 < min(run.http_p50_ms, run.grpc_p50_ms) <= max(run.http_p50_ms, run.grpc_p50_ms) < _REFUSED_MS for run in runs)
    assert all(came["connections"] and came["sent_mib"] > 0 for came in report.result.more["floods"].values())


QUICK_DRILLS = ("gateway freezes", "Redis is slow", "a client floods")
"""On one site, and of those that no other test carries out."""


def quick_drills_cost_nobody_a_request(report: ChaosReport) -> None:
    assert report.result.more["not_carried_out"] == {}
    assert {case.drill: run.failed for case, runs in report.runs.items() for run in runs} == dict.fromkeys(QUICK_DRILLS, 0)
    assert all(run.asked > 0 for runs in report.runs.values() for run in runs)


def rollouts_cost_nobody_a_request(report: Report) -> None:
    figures = report.figures()
    assert {name: figures[name] for name in ("failed", "misassigned", "wrong", "not_as_wanted", "not_caught")} == dict.fromkeys(
        ("failed", "misassigned", "wrong", "not_as_wanted", "not_caught"), 0
    )
    assert figures["asked"] > 200


def only_hedged_where_it_is_on(report: Report) -> None:
    for case, runs in report.runs.items():
        assert all(run.executions >= 1.0 and (case.way == ON or run.hedged == 0.0) for run in runs)
        assert all(run.foretold_executions >= 1.0 for run in runs) is (case.way != OFF_AGAIN)
    half = report.result.more["half"]
    assert 0.3 < half["hedged"] <= 0.7  # about half, of a few dozen
    assert half["more_processes"] == half["errors"] == 0


def few_are_rolled_back_that_are_no_worse(report: RolloutGatesReport) -> None:
    assert report.figures()["false_rollbacks_percent"] <= 15, "3 of 20; the scenario itself has a target, of 10,000"
    assert report.median(GatesCase("fails always", "gates", False)).failed == 2


def every_job_is_done(report: Report) -> None:
    assert report.figures()["errors"] == 0
    assert all(run.per_s > 0 for runs in report.runs.values() for run in runs)
    assert report.median(JobsCase(BESIDE)).jobs_per_s > 0


def no_job_is_lost(report: ChaosJobsReport) -> None:
    assert [target for target in report.targets() if not target.is_met(report.figures()[target.figure])] == [], report.result.more["said"]
    (run,) = next(iter(report.runs.values()))
    assert run.accepted > 100
    assert run.lines > 0
    assert run.faults > 0


ONE_ROUND = ("--rounds", "1")
RUNS = [
    run("smoke", *ONE_ROUND, "--requests", "50"),
    run(
        "gateway", *ONE_ROUND, "--seconds", "1", "--connections", "2", "--sizes", "1536", "--peers", "nginx", "starlette-aiohttp",
        "fastapi-httpx", "grpc-aio", "grpc-aio-to-http", "tidegate",
    ),
    run("waiting", *ONE_ROUND, "--seconds", "0.3", "--requests", "40", "--upload-mib", "8", "--only", "grpc"),
    run("floods", *ONE_ROUND, "--seconds", "0.3", "--only", "reset at once", check=the_one_who_does_no_harm_is_answered),
    run("tenants", *ONE_ROUND, "--seconds", "0.5", "--settle-s", "0.5", "--callers", "2", "--flood", "5", "--models", "batches"),
    run(
        "embedding", *ONE_ROUND, "--seconds", "0.2", "--callers", "1", "--peers", "flask", "triton-http", "tidegate-http", "tidegate-grpc",
        check=repeats_are_hits,
    ),
    run(
        "long-documents", *ONE_ROUND, "--documents", "4", "--pages", "2", "--repeats", "0.5", "--callers", "1", "2",
        "--ways", FLASK, AS_SHIPPED, check=copies_are_hits,
    ),
    run(
        "batching", *ONE_ROUND, "--seconds", "0.3", "--callers", "4", "--variants", "int8", "--mixes", "95/5", "--ways", "length-aware",
        "one-by-one", "first-come",
    ),
    run("cache-hits", *ONE_ROUND, "--seconds", "1", "--connections", "2"),
    run("repeats", *ONE_ROUND, "--requests", "100", "--caches", NO_CACHE, SHIPPED, check=only_a_cache_has_hits),
    run("cache-faults", *ONE_ROUND, "--requests", "50", "--levels", "none", "held still"),
    run(
        "fleet", *ONE_ROUND, "--requests", "20", "--seconds", "2", "--models", "3", "--servers", "2", "--room", "1.5", "--ways", "tidegate",
    ),
    run("nodes", *ONE_ROUND, "--seconds", "1", "--connections", "2", "--models", "3", "--rest-s", "0.5"),
    run("chaos", *ONE_ROUND, *QUICK_DRILLS, "--scale", "0.2", check=quick_drills_cost_nobody_a_request),
    run("chaos-jobs", "jobs while everything dies", "--jobs", "120", "--fault-s", "8", check=no_job_is_lost),
    run(
        "hedging", *ONE_ROUND, "--requests", "250", "--learn", "400", "--works", "stragglers", "--loads", "0.2", "--half-s", "1",
        check=only_hedged_where_it_is_on,
    ),
    run(
        "jobs", *ONE_ROUND, "--seconds", "0.3", "--texts", "20", "--accept-per-s", "20", check=every_job_is_done,
    ),
    run("eviction", "--requests", "3000", "--sizes", "10"),
    run("simulate", "--seeds", "1", "--cases", "8x5", "--policies", "round robin", "Tidegate"),
    run("rollouts", *ONE_ROUND, "--rollouts", "2", "--bad", "fails", "--cost", "1", check=rollouts_cost_nobody_a_request),
    run("rollout-gates", "--alike", "20", "--worse", "2", "--ticks", "10", check=few_are_rolled_back_that_are_no_worse),
    run("prefetch", "--seeds", "1", "--cases", "own times", "--forecasts", "none", "idle times and successions", "clairvoyant"),
]  # fmt: skip


@pytest.mark.timeout(2 * _TIMEOUT_S)
@pytest.mark.parametrize(("name", "flags", "check"), RUNS)
def test_scenario(name: str, flags: tuple[str, ...], check: Callable[[Any], None], tmp_path: Path) -> None:
    scenario = SCENARIOS[name]
    if missing := missing_packages(scenario.programs):
        pytest.skip(f"Debian packages are missing: {', '.join(missing)}")
    command = [sys.executable, "-m", scenario.module, *flags, "--output", str(tmp_path)]
    assert_carried_out(command)
    report = scenario.report.read(tmp_path)
    assert_whole(report, json.loads((tmp_path / f"{name}.json").read_text()))
    assert (tmp_path / f"{name}.md").read_text() == report.markdown()
    assert not report.plot or (tmp_path / f"{name}.{report.plot}").stat().st_size > 10_000
    check(report)


def assert_carried_out(command: list[str]) -> None:
    """One that takes too long is asked to end, so that it ends what it has started; killed it could not."""
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            _, errors = process.communicate(timeout=_TIMEOUT_S)
        except BaseException:
            process.terminate()
            process.communicate()
            raise
    assert process.returncode == 0, errors[-4000:]


def assert_whole(report: Report, document: dict[str, Any]) -> None:
    """No request failed, each target could be judged or is of a case that was left out, and the provenance is all there."""
    assert report.runs
    assert [run for runs in report.runs.values() for run in runs if getattr(run, "errors", 0)] == []
    figures = report.figures()
    assert figures
    assert [name for name, value in figures.items() if not math.isfinite(value)] == []
    assert document["figures"] == pytest.approx(figures)
    assert document["measured"].keys() >= {"commit", "tree", "at", "command", "took_s", "machine", "python"}


def test_every_scenario_has_a_run() -> None:
    assert {parameters.values[0] for parameters in RUNS} == SCENARIOS.keys()
