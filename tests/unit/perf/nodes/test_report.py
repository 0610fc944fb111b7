"""What the report says of a node's cost: beside both embedded ones in each round, and beside what those two differ by."""

from __future__ import annotations

import pytest

from perf.measurement.report import Result
from perf.nodes.__main__ import _divided
from perf.nodes.report import ALIKE, EMBEDDED, NODE, Case, Report, Run


def run(p50_ms: float) -> Run:
    return Run(per_s=1000 / p50_ms, p50_ms=p50_ms, p99_ms=9.0, cpu_us=50.0)


def compared(node: tuple[float, ...], one: tuple[float, ...], other: tuple[float, ...]) -> Report:
    times = {EMBEDDED: one, NODE: node, ALIKE: other}
    return Report(Result({Case(where, 32): [run(each) for each in values] for where, values in times.items()}))


def test_what_two_that_are_alike_differ_by_stands_beside_what_a_node_costs() -> None:
    report = compared(node=(1.1, 2.1, 4.0), one=(1.0, 2.0, 4.0), other=(1.21, 2.0, 4.0))
    figures = report.figures()
    assert figures["p50_ms_percent_32"] == pytest.approx(0.0), "1.1 is the mean of 1 and 1.21"
    assert figures["p50_ms_noise_percent_32"] == pytest.approx(0.0)
    (line,) = (line for line in report.summary().splitlines() if line.startswith("| p50 | 32"))
    assert [cell.strip() for cell in line.split("|")[3:5]] == ["0.00 (0.00 to 2.50)", "0.00 (0.00 to 10.5)"]


@pytest.mark.parametrize(
    ("one", "other", "is_met"),
    [
        pytest.param(1.0, 1.06, True, id="the first embedded one is the quick one"),
        pytest.param(1.06, 1.0, True, id="the second is"),
        pytest.param(1.0, 1.0, False, id="both are"),
    ],
)
def test_a_node_is_held_against_both_embedded_ones(one: float, other: float, is_met: bool) -> None:
    report = compared(node=(1.05,), one=(one,), other=(other,))
    (target,) = (each for each in report.targets() if each.figure == "p50_ms_percent_32")
    assert target.is_met(report.figures()[target.figure]) == is_met


def test_rounds_are_divided_among_the_starts() -> None:
    assert [_divided(18, 3), _divided(7, 3), _divided(1, 3)] == [[6, 6, 6], [3, 2, 2], [1]]
