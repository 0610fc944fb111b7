"""The list of drills: each can be carried out, is held against something, and names a test that there is."""

from __future__ import annotations

import math
import re

import pytest

from perf.chaos.drills import DRILLS, Drill
from perf.chaos.report import Case, Report, list_of_drills, table_of_drills
from perf.chaos.run import Run
from perf.chaos.sites.sites import SITES
from perf.measurement.report import Result
from perf.servers.processes import PROJECT

each = pytest.mark.parametrize("drill", DRILLS.values(), ids=lambda drill: drill.key)


def report(drill: Drill, **figures: float) -> Report:
    return Report(Result({Case(drill.name): [Run(asked=100, **figures)]}, more={"said": {}, "not_carried_out": {}}))  # type: ignore[arg-type]


@each
def test_a_drill_has_a_site_and_a_test_that_is_there(drill: Drill) -> None:
    assert drill.site in SITES
    if drill.test:
        path, _, name = drill.test.partition("::")
        assert re.search(rf"^(?:async )?def {name}\(", (PROJECT / path).read_text(), re.MULTILINE)


@each
def test_what_is_measured_is_held_against_a_target(drill: Drill) -> None:
    overload = {"goodput": 0.95, "refused_p90_ms": 3.0, "grown_mib": 1.0, "normal_after_s": 0.1}
    well = overload if drill.is_overload else {"longest_repeatable_s": 0.1}
    assert report(drill, **well).verdict(drill) == "met"
    badly = {**well, "goodput": 0.5} if drill.is_overload else {"failed": 99, "failed_repeatable": 99, "last_failure_s": 60.0}
    assert report(drill, **badly).verdict(drill) == "**not met**"


def test_a_pause_that_was_not_measured_is_no_success() -> None:
    assert report(DRILLS["Triton freezes"]).verdict(DRILLS["Triton freezes"]) == "**not met**"


def test_a_drill_that_is_not_carried_out_is_a_target_missed() -> None:
    done = report(DRILLS["Triton dies"])
    assert done.figures()["not_carried_out"] == 0
    done.result.more["not_carried_out"] = {"worker dies": "there is no such process"}
    missed = next(target for target in done.targets() if target.figure == "not_carried_out")
    assert not missed.is_met(done.figures()["not_carried_out"])


def test_names_of_figures_are_unique() -> None:
    assert len({drill.key for drill in DRILLS.values()}) == len(DRILLS)


@pytest.mark.parametrize("figure", ["streams_failed", "streams_lost", "streams_cut_short", "streams_refused", "streams_last_failure_s"])
def test_streams_are_held_against_targets(figure: str) -> None:
    drill = DRILLS["Triton dies"]
    well = {"streams": 50, "streams_broken_off": 3}
    assert report(drill, **well).verdict(drill) == "met"
    assert report(drill, **well, **{figure: 9.0}).verdict(drill) == "**not met**"


def test_where_nothing_may_fail_no_stream_is_broken_off() -> None:
    drill = DRILLS["Redis dies"]
    assert report(drill, streams=50, streams_broken_off=1).verdict(drill) == "**not met**"


def test_who_is_told_when_to_come_again_is_lost_only_where_another_server_should_have_answered() -> None:
    told = {"failed": 5, "failed_repeatable": 5, "refused_repeatable": 5, "streams": 50, "streams_refused": 5}
    assert report(only := DRILLS["the only Triton dies"], **told).verdict(only) == "met"
    assert report(only, **{**told, "refused_repeatable": 4}).verdict(only) == "**not met**"
    assert report(one_of := DRILLS["Triton dies"], **told).verdict(one_of) == "**not met**"


def test_of_a_poison_beside_an_only_stub_a_hundredth_may_fail() -> None:
    drill = DRILLS["a request is poison to the only stub"]
    assert [report(drill, failed=failed).verdict(drill) for failed in (1, 2)] == ["met", "**not met**"]


def test_the_table_says_how_streams_ended() -> None:
    drill = DRILLS["Triton dies"]
    assert "; of 50 streams none failed |" in table_of_drills(report(drill, streams=50))
    told = "; of 50 streams 2 broken off with an error, 1 ended without a word |"
    found = report(drill, streams=50, streams_broken_off=2, streams_lost=1, streams_refused=0, streams_failed=0, streams_cut_short=0)
    assert told in table_of_drills(found)
    assert "| Triton dies | 50 | 0 | 0 | 2 | 1 | 0 |" in found.summary()


def test_the_table_has_every_drill_measured_or_not() -> None:
    triton = DRILLS["Triton dies"]
    table = table_of_drills(report(triton, failed=3, failed_repeatable=1, last_failure_s=0.5))
    assert all(f"| {name} |" in table for name in DRILLS)
    assert "3 of 100 failed, 1 of them repeatable, the last after 0.50 s | **not met** |" in table
    assert table_of_drills(None).count("not met") == 0


def test_links_of_the_table_lead_from_its_document_to_the_root() -> None:
    tested = next(drill for drill in DRILLS.values() if "::" in drill.test)
    assert f"]({'../../' + tested.test.partition('::')[0]})" in table_of_drills(None, to_root="../../")


def test_the_list_names_every_drill_and_says_which_was_not_met() -> None:
    triton = DRILLS["Triton dies"]
    not_met, unmeasured = list_of_drills(report(triton, failed=3, failed_repeatable=1)), list_of_drills(None)
    assert not_met.startswith("Triton dies (**not met**); Triton freezes;")
    assert unmeasured.removesuffix(".").replace("\n", " ").split("; ") == list(DRILLS)
    assert max(map(len, not_met.splitlines())) <= 110


def test_the_summary_has_a_row_for_what_was_measured_and_says_what_was_not() -> None:
    drill = DRILLS["too much"]
    found = report(drill, goodput=0.93, refused_p90_ms=3.0, grown_mib=1.0, normal_after_s=0.0)
    more = {"said": {drill.name: {"http: 503 busy": 7}}, "not_carried_out": {"Redis dies": "no Redis"}}
    found = Report(Result(found.runs, more=more))
    assert "| too much | 100 | 0 | 0.93 |" in found.summary()
    assert "**Redis dies** was not carried out: no Redis" in found.summary()
    assert "7 x `http: 503 busy`" in found.details()
    assert math.isclose(found.figures()["too_much_goodput"], 0.93)
