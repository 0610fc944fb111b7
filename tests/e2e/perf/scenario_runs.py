"""A scenario of `perf/` run for seconds, and what must be so of its result: shared by `test_perf*.py`.

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

from perf.measurement.report import Report
from perf.scenarios import SCENARIOS
from perf.servers.processes import missing_packages
from python_backends.runtime.machine import gpu_name
from tests.e2e.tidegate import PROJECT

TIMEOUT_S = 300
ONE_ROUND = ("--rounds", "1")


def run(name: str, *flags: str, check: Callable[[Any], None] = lambda report: None) -> Any:
    return pytest.param(name, flags, check, id=name)


def carry_out(name: str, flags: tuple[str, ...], check: Callable[[Any], None], tmp_path: Path) -> None:
    """Run the scenario without an error, and find its result whole and as `check` wants it."""
    scenario = SCENARIOS[name]
    if missing := missing_packages(scenario.report.programs):
        pytest.skip(f"Debian packages are missing: {', '.join(missing)}")
    if scenario.needs_gpu and gpu_name() is None:
        pytest.skip("no NVIDIA GPU")
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
            _, errors = process.communicate(timeout=TIMEOUT_S)
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
