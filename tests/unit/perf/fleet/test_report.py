from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import pytest

from perf.fleet.alone import Alone
from perf.fleet.report import ROUND_ROBIN, TIDEGATE, Case, Report, Run, off
from perf.fleet.servers import Memory

MB = 1_000_000
RUN = Run(
    loads=20, unloads=9, failures=0, p50_ms=5.0, p99_ms=3000.0, mean_ms=200.0, seconds=61.0, load_ms=2000.0,
    unload_ms=1200.0, held_bytes=390 * MB, predicted_loads=22, predicted_refused=0, predicted_p50_ms=5.5, predicted_p99_ms=2000.0,
)  # fmt: skip


@pytest.fixture
def report(tmp_path: Path) -> Report:
    arguments = argparse.Namespace(requests=600, seconds=60.0, rounds=3, servers=3, trace=None, output=tmp_path)
    over = replace(RUN, held_bytes=440 * MB, failures=2)
    return Report(
        {Case(TIDEGATE): [RUN, RUN, RUN], Case(ROUND_ROBIN): [RUN, over, RUN]},
        [],
        arguments,
        {"small": Alone(60 * MB, 2.0, 1.2, 0.001), "large": Alone(160 * MB, 2.0, 1.2, 0.010)},
        400 * MB,
        {way: Memory([0.0, 0.5], {11: [40 * MB, 300 * MB], 12: [40 * MB, 430 * MB]}) for way in (TIDEGATE, ROUND_ROBIN)},
    )


def row(report: Report, way: str, number: int) -> list[str]:
    lines = [line for line in report.markdown().splitlines() if line.startswith(f"| {way} ")]
    return [cell.strip() for cell in lines[number].strip("|").split("|")]


def test_what_happened_is_medians_but_failures_and_memory_are_of_all_rounds(report: Report) -> None:
    assert row(report, TIDEGATE, 0)[1:] == ["20", "0", "5.00", "3,000", "200", "61.0", "2.00", "390", "98%"]
    assert row(report, ROUND_ROBIN, 0)[1:3] == ["20", "2"]
    assert row(report, ROUND_ROBIN, 0)[-2:] == ["440", "**110%**"]


def test_what_was_simulated_stands_beside_it(report: Report) -> None:
    assert row(report, TIDEGATE, 1)[1:] == ["20", "22", "+10%", "5.00", "5.50", "+10%", "3,000", "2,000", "**-33%**"]


@pytest.mark.parametrize(("predicted", "told"), [(12, "+20%"), (12.1, "**+21%**"), (8, "-20%"), (7.9, "**-21%**"), (10, "+0%")])
def test_what_is_too_far_off_is_seen(predicted: float, told: str) -> None:
    assert off(10, predicted) == told


def test_of_nothing_nothing_is_far() -> None:
    assert off(0, 3) == ""


def test_all_of_it_is_written(report: Report, tmp_path: Path) -> None:
    report.write()
    document = json.loads((tmp_path / "fleet.json").read_text())
    assert document["budget_bytes"] == 400 * MB
    assert document["alone"]["large"]["resident_bytes"] == 160 * MB
    assert document["memory"][TIDEGATE]["held_bytes"][1] == [40 * MB, 430 * MB]
    assert [len(case["rounds"]) for case in document["cases"]] == [3, 3]
    assert (tmp_path / "fleet.md").read_text() == report.markdown()
    assert (tmp_path / "fleet.png").stat().st_size > 10_000
