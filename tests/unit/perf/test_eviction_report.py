"""The target is the mean gap closed and the worst loss against LRU, both in what is saved."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from perf import eviction_plot
from perf.eviction_report import BOUND, LRU, Case, Report, Run
from perf.policies import OURS


def run(hit_ratio: float, saved_part: float | None = None) -> Run:
    return Run(hit_ratio, 1000 * hit_ratio, hit_ratio if saved_part is None else saved_part, 1.0)


def report(tmp_path: Path, *, ours: float = 0.6) -> Report:
    results = {
        Case("a", 10, BOUND): [run(0.8)],
        Case("a", 10, LRU): [run(0.4)],
        Case("a", 10, OURS): [run(ours)],
        Case("b", 10, BOUND): [run(0.6, 0.9)],
        Case("b", 10, LRU): [run(0.5, 0.5)],
        Case("b", 10, OURS): [run(0.4, 0.6)],
    }
    arguments = argparse.Namespace(sizes=[10], policies=[LRU, OURS], output=tmp_path)
    return Report(results, ["a: made", "b: made too: of something"], arguments)


def test_the_gap_closed(tmp_path: Path) -> None:
    assert report(tmp_path).closed("a", 10, OURS) == pytest.approx(0.5)
    assert report(tmp_path).closed("b", 10, OURS) == pytest.approx(0.25)
    assert report(tmp_path).closed("a", 10, LRU) == 0
    assert report(tmp_path).mean_closed(10, OURS) == pytest.approx(0.375)


def test_the_table(tmp_path: Path) -> None:
    markdown = report(tmp_path).markdown()
    assert "| a | 80.0 | 40.0 | 60.0 (50) |" in markdown
    assert "| b | 60.0 | 50.0 | 40.0 (25) |" in markdown
    assert "| mean of the gap closed |  |  | (37.5) |" in markdown
    assert "| b, 10 % | 0.60 | 0.50 | 0.40 |" in markdown
    assert "* **b**: made too: of something." in markdown


@pytest.mark.parametrize(
    ("ours", "mean_is", "worst_is"), [(0.6, "met", "met"), (0.5, "**not met**", "met"), (0.394, "**not met**", "**not met**")]
)
def test_the_target(tmp_path: Path, ours: float, mean_is: str, worst_is: str) -> None:
    told = next(line for line in report(tmp_path, ours=ours).markdown().splitlines() if line.startswith("Wanted"))
    mean_told, worst_told = told.split(" Never ")
    assert mean_told.endswith(f"%, {mean_is}.")
    assert worst_told.endswith(f"at worst, {worst_is}.")


def test_no_folder_of_the_machine_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["eviction.py", "--traces", "/somewhere/traces"])
    report(tmp_path).write()
    assert json.loads((tmp_path / "eviction.json").read_text())["command"] == "python -m perf.eviction --traces traces"
    assert "somewhere" not in (tmp_path / "eviction.md").read_text()


def test_the_plot(tmp_path: Path) -> None:
    eviction_plot.draw(report(tmp_path))
    assert (tmp_path / "eviction.png").stat().st_size > 10_000
