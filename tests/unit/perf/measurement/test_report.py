"""A result is read as it was written, and held against its targets by the figures that are there."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from perf.measurement import report
from perf.measurement.provenance import provenance
from perf.measurement.report import Result, Target


@dataclass(frozen=True, slots=True)
class Case:
    way: str
    callers: int


@dataclass(frozen=True, slots=True)
class Run:
    p50_ms: float
    long_p99_ms: float = math.nan


class Report(report.Report):
    name, title, case, run = "example", "An example", Case, Run

    def figures(self) -> dict[str, float]:
        return {"own_p50_ms": self.median(Case("own", 1)).p50_ms}

    def targets(self) -> Sequence[Target]:
        return (Target("own_p50_ms", "p50, ms", 2.0, at_least=False), Target("never", "not measured", 2.0, at_least=True))

    def summary(self) -> str:
        return f"{self.over_rounds(Case('own', 1), Case('other', 1), lambda own, other: other.p50_ms / own.p50_ms):g} times"


MEASURED = {**provenance(), "command": "python -m perf.example", "took_s": 12.0}
RUNS = {Case("own", 1): [Run(1.0), Run(5.0), Run(2.0)], Case("other", 1): [Run(2.0), Run(5.0), Run(6.0, 7.0)]}
MADE = Report(Result(RUNS, ["texts"], {"served": ["int8"]}, {"rounds": 3}, MEASURED))


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    MADE.write(tmp_path)
    read = Report.read(tmp_path)
    assert read.document() == MADE.document()
    assert math.isnan(read.runs[Case("own", 1)][0].long_p99_ms)
    assert (tmp_path / "example.md").read_text() == read.markdown()


def test_the_file_is_json_that_any_parser_reads(tmp_path: Path) -> None:
    MADE.write(tmp_path)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    document = json.loads((tmp_path / "example.json").read_text(), parse_constant=refuse)
    assert document["cases"][0] == {
        "case": {"way": "own", "callers": 1},
        "median": {"p50_ms": 2.0, "long_p99_ms": None},
        "rounds": [{"p50_ms": each, "long_p99_ms": None} for each in (1.0, 5.0, 2.0)],
    }
    assert document["figures"] == {"own_p50_ms": 2.0}
    assert [(each["figure"], each["measured"], each["is_met"]) for each in document["targets"]] == [("own_p50_ms", 2.0, True)]


def test_ways_are_compared_within_each_round() -> None:
    assert MADE.summary() == "2 times"


def test_the_summary_says_where_it_is_from_and_what_is_met() -> None:
    assert MEASURED["commit"] in MADE.block()
    assert "| p50, ms | 2.00 | <= 2 | met |" in MADE.block()
    assert "not measured" not in MADE.block()


@pytest.mark.parametrize(("at_least", "value", "is_met"), [(True, 2.0, True), (True, 1.9, False), (False, 2.0, True), (False, 2.1, False)])
def test_targets(at_least: bool, value: float, is_met: bool) -> None:
    target = Target("x", "x", 2.0, at_least)
    assert target.is_met(value) is is_met
    assert (target.row(value)[-1] == "met") is is_met
