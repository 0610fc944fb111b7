"""Scenarios are called with the traces that a folder has, and say how they were called without naming folders."""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from perf.measurement import harness
from perf.scenarios import SCENARIOS
from perf.servers.processes import PROJECT


def test_every_scenario_is_a_module() -> None:
    assert [name for name, scenario in SCENARIOS.items() if find_spec(scenario.module) is None] == []


def test_every_module_that_measures_is_a_scenario() -> None:
    harnessed = {path for path in (PROJECT / "perf").rglob("*.py") if "    harness.carry_out" in path.read_text()}
    modules = {scenario.module.removeprefix("perf.") for scenario in SCENARIOS.values()}
    assert {path.parent.name if path.name == "__main__.py" else path.stem for path in harnessed} == modules


def test_a_scenario_imports_no_other() -> None:
    program = "import sys, perf.smoke.__main__; print(*sorted(name for name in sys.modules if name.endswith('.report')))"
    done = subprocess.run([sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["perf.measurement.report", "perf.smoke.report"]


@pytest.mark.parametrize(
    ("scenario", "files", "flags"),
    [
        pytest.param("simulate", ["gentd26_requests_all.csv.gz"], ["--trace", "gentd26_requests_all.csv.gz"], id="one of two"),
        pytest.param("eviction", [], ["--traces", "."], id="the folder itself"),
        pytest.param("fleet", ["other.csv.gz"], [], id="none"),
        pytest.param("smoke", ["gentd26_requests_all.csv.gz"], [], id="takes none"),
    ],
)
def test_traces(tmp_path: Path, scenario: str, files: list[str], flags: list[str]) -> None:
    for name in files:
        (tmp_path / name).touch()
    found = SCENARIOS[scenario].flags(tmp_path)
    assert [str(Path(each).relative_to(tmp_path)) if Path(each).exists() else each for each in found] == flags
    assert SCENARIOS[scenario].flags(None) == []


@pytest.mark.parametrize(
    ("scenario", "flags"),
    [pytest.param("smoke", ["--rounds", "1"], id="has rounds"), pytest.param("simulate", [], id="has none")],
)
def test_rounds(scenario: str, flags: list[str]) -> None:
    assert SCENARIOS[scenario].flags(None, 1) == flags


def test_results_name_files_without_their_folders(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").touch()
    assert harness._command("perf.embedding", ["--queries", str(tmp_path / "trace.csv"), "--mixes", "95/5"]) == (
        "python -m perf.embedding --queries trace.csv --mixes 95/5"
    )
    options = harness._options(argparse.Namespace(rounds=1, trace=[tmp_path / "trace.csv"], output=tmp_path))
    assert options == {"rounds": 1, "trace": ["trace.csv"]}
