"""A scenario of `perf/` run for seconds, and what must be so of its result: shared by `test_perf*.py`.

How fast anything was is not asked: a target that is missed on a busy machine is no defect.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from perf.measurement.report import Report
from perf.scenarios import SCENARIOS
from perf.servers.processes import missing_packages
from python_backends.runtime.machine import gpu_name
from tests.e2e.forks import PROCESSES, run_module

TIMEOUT_S = 300
ONE_ROUND = ("--rounds", "1")
COMPLETE = {
    "smoke", "processes", "cache-hits", "hedging", "budgets", "rollouts", "embedding", "long-documents", "batching", "streaming",
    "repeats", "cache-faults",
}  # fmt: skip
"""Scenarios whose Tritons are all embedded, and whose models have complete configurations: none is completed, for which Triton starts
one more stub for each load (`tests.e2e.tidegate.COMPLETE`)."""

REAL = "perf.smoke"
"""Module of the scenario whose gateway is started as a user starts it; of all others it is forked, in a third of the CPU."""


def run(name: str, *flags: str, check: Callable[[Any], None] = lambda report: None) -> Any:
    return pytest.param(name, flags, check, id=name)


def carry_out(name: str, flags: tuple[str, ...], check: Callable[[Any], None], tmp_path: Path) -> None:
    """Run the scenario without an error, and find its result whole and as `check` wants it."""
    scenario = SCENARIOS[name]
    if missing := missing_packages(scenario.report.programs):
        pytest.skip(f"Debian packages are missing: {', '.join(missing)}")
    if scenario.needs_gpu and gpu_name() is None:
        pytest.skip("no NVIDIA GPU")
    variables = {"TIDEGATE_TRITON_ARG": "--disable-auto-complete-config"} if name in COMPLETE else {}
    assert_carried_out(scenario.module, [*flags, "--output", str(tmp_path)], tmp_path / "output.txt", variables)
    report = scenario.report.read(tmp_path)
    assert_whole(report, json.loads((tmp_path / f"{name}.json").read_text()))
    assert (tmp_path / f"{name}.md").read_text() == report.markdown()
    assert not report.plot or (tmp_path / f"{name}.{report.plot}").stat().st_size > 10_000
    check(report)


def assert_carried_out(module: str, flags: Sequence[str], output: Path, variables: Mapping[str, str]) -> None:
    """One that takes too long is asked to end, so that it ends what it has started; killed it could not."""
    process = PROCESSES.Process(
        target=run_module, args=(module, flags, output, {**os.environ, **variables}), kwargs={"is_real": module == REAL}
    )
    process.start()
    try:
        process.join(TIMEOUT_S)
    finally:
        process.terminate()
        process.join()
    assert process.exitcode == 0, output.read_text()[-4000:]


def assert_whole(report: Report, document: dict[str, Any]) -> None:
    """No request failed, each target could be judged or is of a case that was left out, and the provenance is all there."""
    assert report.runs
    assert [run for runs in report.runs.values() for run in runs if getattr(run, "errors", 0)] == []
    figures = report.figures()
    assert figures
    assert [name for name, value in figures.items() if not math.isfinite(value)] == []
    assert document["figures"] == pytest.approx(figures)
    assert document["measured"].keys() >= {"commit", "tree", "at", "command", "took_s", "machine", "python"}
