"""What the report says of a node's cost: beside embedded in each round, and beside what two that are alike differ by."""

from __future__ import annotations

import pytest

from perf.measurement.report import Result
from perf.nodes.report import ALIKE, EMBEDDED, NODE, Case, Report, Run


def run(p50_ms: float) -> Run:
    return Run(per_s=1000 / p50_ms, p50_ms=p50_ms, p99_ms=9.0, cpu_us=50.0)


def test_what_two_that_are_alike_differ_by_stands_beside_what_a_node_costs() -> None:
    times = {EMBEDDED: (1.0, 2.0, 4.0), NODE: (1.1, 2.1, 4.0), ALIKE: (0.9, 2.2, 4.4)}
    report = Report(Result({Case(where, 32): [run(each) for each in values] for where, values in times.items()}))
    figures = report.figures()
    assert figures["p50_ms_percent_32"] == pytest.approx(5.0)
    assert figures["p50_ms_noise_percent_32"] == pytest.approx(10.0)
    (line,) = (line for line in report.summary().splitlines() if line.startswith("| p50 | 32"))
    assert [cell.strip() for cell in line.split("|")[3:5]] == ["5.00 (2.50 to 7.50)", "10.0 (0.00 to 10.0)"]


def test_without_a_second_one_nothing_is_said_of_noise() -> None:
    report = Report(Result({Case(where, 1): [run(1.0)] for where in (EMBEDDED, NODE)}))
    assert not any("noise" in name for name in report.figures())
    assert "alike" not in report.summary()
