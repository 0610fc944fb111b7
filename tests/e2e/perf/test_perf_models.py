"""Scenarios of `perf/` on what is computed, cached and queued, each for seconds on the shipped configuration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perf.embedding.report import Report as EmbeddingReport
from perf.jobs.report import BESIDE, JOBS, SPIKE
from perf.jobs.report import Case as JobsCase
from perf.long_documents.report import FLASK
from perf.long_documents.report import SHIPPED as AS_SHIPPED
from perf.measurement.report import Report
from perf.repeats.report import NO_CACHE, SHIPPED, Case
from tests.e2e.perf.scenario_runs import ONE_ROUND, TIMEOUT_S, carry_out, run


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


def answers_are_the_whole_models(report: Report) -> None:
    assert report.figures()["difference"] < 1e-5
    assert report.figures()["resident_part"] < 1


def answers_are_those_of_the_model_with_all_its_weights(report: Report) -> None:
    assert report.figures()["differing"] == 0
    assert report.figures()["held_part"] < 0.17


def a_long_prompt_is_read_beside_an_answer(report: Report) -> None:
    assert report.figures()["pause_of_prompt"] > 0


def every_job_is_done(report: Report) -> None:
    assert report.figures()["errors"] == 0
    assert JobsCase(BESIDE) in report.runs
    # In windows so short perhaps no job ends, as jobs get what is left of the CPUs; the spike's are waited for.
    assert all(run.per_s > 0 for case, runs in report.runs.items() for run in runs if case != JobsCase(JOBS))
    spike = report.median(JobsCase(SPIKE))
    assert (spike.accepted > 0, spike.lost) == (True, 0)


RUNS = [
    run(
        "embedding", *ONE_ROUND, "--seconds", "0.2", "--callers", "1", "--peers", "flask", "triton-http", "tidegate-http", "tidegate-grpc",
        check=repeats_are_hits,
    ),
    pytest.param(
        "gpu", (*ONE_ROUND, "--seconds", "0.2", "--callers", "1", "--batch-callers", "1"), lambda report: None, id="gpu",
        marks=pytest.mark.gpu,
    ),
    run(
        "long-documents", *ONE_ROUND, "--documents", "4", "--pages", "2", "--repeats", "0.5", "--callers", "1", "2",
        "--ways", FLASK, AS_SHIPPED, check=copies_are_hits,
    ),
    run(
        "batching", *ONE_ROUND, "--seconds", "0.3", "--callers", "4", "--variants", "int8", "--mixes", "95/5", "95/5 by 16",
        "--ways", "length-aware", "one-by-one", "first-come",
    ),
    run(
        "generation", *ONE_ROUND, "--callers", "1", "8", "--tokens", "2", "--long-tokens", "128",
        check=a_long_prompt_is_read_beside_an_answer,
    ),
    run("streaming", *ONE_ROUND, "--requests", "2", check=answers_are_the_whole_models),
    pytest.param(
        "streaming-gpu", (*ONE_ROUND, "--tokens", "2", "--percents", "16", "--ways", "weight_memory_mb"),
        answers_are_those_of_the_model_with_all_its_weights, id="streaming-gpu", marks=pytest.mark.gpu,
    ),
    run("repeats", *ONE_ROUND, "--requests", "100", "--caches", NO_CACHE, SHIPPED, check=only_a_cache_has_hits),
    run("cache-faults", *ONE_ROUND, "--requests", "50", "--levels", "none", "held still"),
    run(
        "jobs", *ONE_ROUND, "--seconds", "0.5", "--share", "0.6", "--texts", "20", "--texts-of-a-job", "2", "--accept-per-s", "20",
        "--upload-bytes", "20000000", "--spike-seconds", "0.1", check=every_job_is_done,
    ),
]  # fmt: skip


@pytest.mark.timeout(2 * TIMEOUT_S)
@pytest.mark.parametrize(("name", "flags", "check"), RUNS)
def test_scenario(name: str, flags: tuple[str, ...], check: Callable[[Any], None], tmp_path: Path) -> None:
    carry_out(name, flags, check, tmp_path)
