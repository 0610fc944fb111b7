"""The table of the drills of jobs: one is met where nothing at all is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from perf.chaos_jobs.drills import DRILLS
from perf.chaos_jobs.report import Case, Report, table_of_drills
from perf.chaos_jobs.run import Run
from perf.measurement.report import Result

DRILL = next(iter(DRILLS.values()))
WRONGS = ("lost", "unanswered", "doubled", "changed", "wrong", "miscounted", "left_behind")


def report(**figures: Any) -> Report:
    runs = {Case(DRILL.name): [Run(accepted=2000, lines=140, faults=7, **figures)]}
    return Report(Result(runs, more={"faults": {DRILL.name: {"kill -9 of Redis": 7}}, "said": {DRILL.name: ["wrong: job-1"]}}))


def test_one_that_finds_nothing_wrong_is_met() -> None:
    found = report(rounded=3)
    assert found.verdict(DRILL) == "met"
    assert found.measured(DRILL) == "2,000 jobs and 140 lines, 7 faults: each answered once"
    assert all(target.is_met(found.figures()[target.figure]) for target in found.targets())


@pytest.mark.parametrize("wrong", WRONGS)
def test_one_thing_that_is_wrong_is_held_against_it(wrong: str) -> None:
    found = report(**{wrong: 1})
    assert found.verdict(DRILL) == "**not met**"
    missed = [target.figure for target in found.targets() if not target.is_met(found.figures()[target.figure])]
    assert missed == [f"{DRILL.key}_wrong_in_all"]


def test_the_table_has_every_drill_measured_or_not() -> None:
    assert all(f"| {name} |" in table_of_drills(None) for name in DRILLS)
    assert "1 lost | **not met** |" in table_of_drills(report(lost=1))


def test_the_summary_file_says_what_was_done_and_what_was_wrong() -> None:
    details = report(wrong=1).details()
    assert "* 7 x kill -9 of Redis" in details
    assert "* `wrong: job-1`" in details
