"""Targets hold length-aware batching against the other ways, on the 95/5 mix only."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from perf import batching_plot
from perf.batching_report import LENGTH_AWARE, Case, Report, Run


def run(sequences_per_s: float, short_p99_ms: float, padding: float) -> Run:
    return Run(sequences_per_s, 10.0, 50.0, short_p99_ms, 60.0, padding, 8.0, 0.1, 0)


RESULTS = {
    Case("int8", "95/5", LENGTH_AWARE): [run(1400, 30.0, 1.05)],
    Case("int8", "95/5", "first-come"): [run(150, 100.0, 4.0)],
    Case("int8", "95/5", "one-by-one"): [run(1200, 60.0, 1.0)],
    Case("int8", "equal", LENGTH_AWARE): [run(1, 1e6, 99.0)],
    Case("fp32", "95/5", LENGTH_AWARE): [run(400, 10.0, 1.1)],
}


def report(tmp_path: Path) -> Report:
    return Report(RESULTS, ["queries.txt"], argparse.Namespace(rounds=1, duration_s=1.0, callers=64, output=tmp_path))


def test_targets(tmp_path: Path) -> None:
    section = report(tmp_path).markdown().partition("## Targets")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    assert rows == [
        "| sequences/s, times first-come's | int8 | 9.33 | >= 8 | met |",
        "| sequences/s, times one-by-one's | int8 | 1.17 | >= 1.25 | **not met** |",
        "| padding | int8 | 1.05 | <= 1.08 | met |",
        "| padding | fp32 | 1.10 | <= 1.08 | **not met** |",
        "| p99 of short ones, as part of first-come's | int8 | 0.30 | <= 0.2 | **not met** |",
    ]


def test_the_files_have_every_case(tmp_path: Path) -> None:
    report(tmp_path).write()
    cases = json.loads((tmp_path / "batching.json").read_text())["cases"]
    assert [(case["variant"], case["mix"], case["way"]) for case in cases] == [(each.variant, each.mix, each.way) for each in RESULTS]
    assert "| one-by-one | 1,200 |" in (tmp_path / "batching.md").read_text()


def test_the_plot_is_drawn_from_what_there_is(tmp_path: Path) -> None:
    batching_plot.draw(report(tmp_path))
    assert (tmp_path / "batching.png").read_bytes().startswith(b"\x89PNG")
