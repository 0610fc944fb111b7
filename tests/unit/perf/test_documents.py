"""Figures in documents are those of results."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from perf.documents import BLOCK, measured, paths, quoted, renewed
from perf.measurement.provenance import CLEAN, provenance
from perf.measurement.report import Result
from perf.scenarios import SCENARIOS
from perf.servers.processes import PROJECT
from perf.smoke.report import Case, Report, Run
from perf.tenants import report as tenants

MEASURED = {**provenance(), "command": "python -m perf.smoke", "took_s": 60.0}
RUNS = {Case("http", 1, way): [Run(p50_ms, 2.0, 900.0)] for way, p50_ms in (("direct", 1.0), ("gateway", 1.25))}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    Report(Result(RUNS, options={"rounds": 1}, measured=MEASURED)).write(tmp_path / "results")
    return tmp_path / "results"


def written(tmp_path: Path, text: str) -> Path:
    (tmp_path / "README.md").write_text(text)
    return tmp_path / "README.md"


def test_a_block_is_the_result(tmp_path: Path, results: Path) -> None:
    text = "Before.\n\n<!-- perf smoke -->\nwhat was there\n<!-- perf end -->\n\nAfter.\n"
    new = renewed(written(tmp_path, text), results)
    assert new == f"Before.\n\n<!-- perf smoke -->\n{Report.read(results).block()}\n<!-- perf end -->\n\nAfter.\n"
    assert renewed(written(tmp_path, new), results) == new


def test_a_block_of_targets_has_those_of_every_scenario(tmp_path: Path) -> None:
    cases = [(tenants.SHARE, 10.0), (tenants.FLOOD, 16.0)]
    runs = {tenants.Case("one-by-one", tenants.SHIPPED_LIMIT, load): [tenants.Run(1.0, p99, 1.0, 1.0, 0)] for load, p99 in cases}
    tenants.Report(Result(runs, options={"rounds": 1}, measured=MEASURED)).write(tmp_path / "results")
    new = renewed(written(tmp_path, "<!-- perf targets -->\n\n<!-- perf end -->\n"), tmp_path / "results")
    assert "| tenants | one-by-one: p99 beside the flood, times its own | 1.60 | <= 1.5 | **not met** |" in new
    assert "| gateway |  | to be measured again |  |  |" in new
    assert quoted(written(tmp_path, new)) == SCENARIOS.keys()


def test_a_table_of_drills_links_to_tests_from_where_it_stands() -> None:
    folders = [path for path in paths() if "<!-- perf drills -->" in path.read_text()]
    assert folders
    for path in folders:
        links = re.findall(r"\]\(([^)]*tests/[^)]*\.py)\)", renewed(path))
        assert links
        assert [link for link in links if not (path.parent / link).is_file()] == []


@pytest.mark.parametrize(
    ("shown", "told"),
    [
        pytest.param("9", "0", id="no decimals"),
        pytest.param("9.9", "0.2", id="one"),
        pytest.param("0.25", "0.25", id="as it is"),
        pytest.param("", "0", id="nothing yet"),
    ],
)
def test_a_figure_has_the_decimals_that_it_is_written_with(tmp_path: Path, results: Path, shown: str, told: str) -> None:
    text = 'adds [{}](perf/results/smoke.json "http_1_added_p50_ms") ms, see [there](perf/README.md "x")\n'
    for wrapped in (text, text.replace('.json "', '.json\n"')):
        assert renewed(written(tmp_path, wrapped.format(shown)), results) == wrapped.format(told)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('[1](results/smoke.json "no_such_figure")', id="a figure"),
        pytest.param("<!-- perf no-such -->\n\n<!-- perf end -->", id="a scenario"),
    ],
)
def test_what_is_not_measured_cannot_be_quoted(tmp_path: Path, results: Path, text: str) -> None:
    with pytest.raises(KeyError, match=r"no.such"):
        renewed(written(tmp_path, text), results)


@pytest.mark.parametrize(
    "result",
    [pytest.param(None, id="no result"), pytest.param('{"scenario": "smoke", "commit": "0123456"}', id="one without its provenance")],
)
def test_what_was_written_before_results_said_where_they_are_from_is_left_as_it_is(tmp_path: Path, result: str | None) -> None:
    if result:
        (tmp_path / "smoke.json").write_text(result)
    text = '[1.5](results/smoke.json "added")\n\n<!-- perf smoke -->\n**To be measured again**\n<!-- perf end -->\n'
    assert renewed(written(tmp_path, text), tmp_path) == text


@pytest.mark.parametrize("path", [pytest.param(path, id=str(path.relative_to(PROJECT))) for path in paths()])
def test_documents_have_the_figures_of_results(path: Path) -> None:
    assert path.read_text() == renewed(path), "run make perf-docs"


def test_what_documents_quote_is_from_a_clean_commit() -> None:
    found = {name: measured(name) for path in paths() for name in quoted(path)}
    assert {name: each["tree"] for name, each in found.items() if each and each["tree"] != CLEAN} == {}


def test_an_empty_block_takes_nothing_of_the_next() -> None:
    text = "<!-- perf smoke -->\n<!-- perf end -->\n\nBetween.\n\n<!-- perf repeats -->\nold\n<!-- perf end -->\n"
    assert [found[0].count("perf end") for found in BLOCK.finditer(text)] == [1, 1]


def test_what_is_not_from_a_commit_says_that_it_is_to_be_measured_again() -> None:
    blocks = {found[2]: found[0] for found in BLOCK.finditer((PROJECT / "perf" / "README.md").read_text())}
    assert blocks.keys() == SCENARIOS.keys()
    assert {name for name, block in blocks.items() if "**To be measured again**" in block} == {
        name for name in SCENARIOS if measured(name) is None
    }
