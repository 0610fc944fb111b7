"""The measured figures in the documents, which come from `perf/results` and from nowhere else.

    python -m perf.documents

writes them anew. There are four forms, and all are plain Markdown:

* a block, between `<!-- perf NAME -->` and `<!-- perf end -->`: the tables of that scenario's result;
* a block of the name `targets`: of every scenario its targets, what was measured, and whether they are met;
* a block of the name `drills`: every drill of `perf.chaos`, with what was measured of it; `drills-named`: their names alone, and
  which were not met; `drills-of-jobs`: the same table of `perf.chaos_jobs`;
* a figure in a sentence, which is a link to its result with the figure's name as title, `[17.2](results/simulate.json
  "times_fewer_loads")`: the file has it under `figures`. It is shown with as many decimals as are written there.

What a result does not know is left as it stands: one that was written before results named their commit says `to be measured again`.
`tests/unit/perf/test_documents.py` fails when a document and a result differ, and when a result that is quoted is not from a clean commit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from perf.chaos import report as chaos_report
from perf.chaos_jobs import report as chaos_jobs_report
from perf.measurement.markdown import table
from perf.measurement.report import RESULTS
from perf.scenarios import SCENARIOS
from perf.servers.processes import PROJECT

DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "perf/README.md", "docs/**/*.md")
"""Globs; each must find something."""
TARGETS, DRILLS, DRILLS_NAMED, DRILLS_OF_JOBS = "targets", "drills", "drills-named", "drills-of-jobs"
BLOCK = re.compile(r"(<!-- perf ([a-z-]+) -->)\n(?:.*?\n)??(<!-- perf end -->)", re.DOTALL)
FIGURE = re.compile(r'\[([^\[\]]*)\]\(((?:[\w./-]*/)?results/([a-z-]+)\.json)(\s+)"(\w+)"\)')


def renewed(document: Path, results: Path = RESULTS) -> str:
    """A document with all its figures as the results have them. Raises KeyError for a scenario or figure that is not there."""
    text = BLOCK.sub(lambda found: _block(found, document, results), document.read_text())
    return FIGURE.sub(lambda found: _figure(found, results), text)


def quoted(document: Path) -> set[str]:
    """The scenarios whose results it quotes."""
    text = document.read_text()
    blocks = {found[2] for found in BLOCK.finditer(text)}
    of_blocks = {
        TARGETS: set(SCENARIOS),
        DRILLS: {chaos_report.Report.name},
        DRILLS_NAMED: {chaos_report.Report.name},
        DRILLS_OF_JOBS: {chaos_jobs_report.Report.name},
    }
    scenarios = set().union(*(of_blocks.get(block, {block}) for block in blocks))
    return scenarios | {found[3] for found in FIGURE.finditer(text)}


def renew_all() -> None:
    for path in paths():
        path.write_text(renewed(path))


def paths() -> Iterator[Path]:
    return (path for each in DOCUMENTS for path in sorted(PROJECT.glob(each)))


def measured(scenario: str, results: Path = RESULTS) -> Mapping[str, Any] | None:
    """A result's provenance; None of one that has none, or that is not there."""
    path = results / f"{scenario}.json"
    found: Mapping[str, Any] | None = json.loads(path.read_text()).get("measured") if path.exists() else None
    return found


def _block(found: re.Match[str], document: Path, results: Path) -> str:
    begin, scenario, end = found.groups()
    content = _content(scenario, document, results)
    return found[0] if content is None else f"{begin}\n{content}\n{end}"


def _content(scenario: str, document: Path, results: Path) -> str | None:
    """What stands in a block; None for a scenario that was not measured."""
    if scenario == TARGETS:
        return _targets(results)
    if scenario == DRILLS:
        to_root = "../" * len(document.relative_to(PROJECT).parent.parts)
        return chaos_report.table_of_drills(_drilled(results), to_root=to_root)
    if scenario == DRILLS_NAMED:
        return chaos_report.list_of_drills(_drilled(results))
    if scenario == DRILLS_OF_JOBS:
        name = chaos_jobs_report.Report.name
        return chaos_jobs_report.table_of_drills(chaos_jobs_report.Report.read(results) if measured(name, results) else None)
    report = SCENARIOS[scenario].report
    return report.read(results).block() if measured(scenario, results) else None


def _targets(results: Path) -> str:
    """The table of every scenario's targets; one without a result that says where it is from is to be measured again."""
    rows: list[tuple[str, ...]] = []
    for name, scenario in SCENARIOS.items():
        if measured(name, results):
            report = scenario.report.read(results)
            figures = report.figures()
            rows += [(name, *target.row(figures[target.figure])) for target in report.targets() if target.figure in figures]
        else:
            rows.append((name, "", "to be measured again", "", ""))
    return table(("scenario", "target", "measured", "wanted", ""), rows)


def _drilled(results: Path) -> chaos_report.Report | None:
    """What was measured of the drills; their table and list are there before any was measured."""
    return chaos_report.Report.read(results) if measured(chaos_report.Report.name, results) else None


def _figure(found: re.Match[str], results: Path) -> str:
    shown, path, scenario, space, name = found.groups()  # a paragraph may be wrapped within a link
    if not measured(scenario, results):
        return found[0]
    value = json.loads((results / f"{scenario}.json").read_text())["figures"][name]
    decimals = len(shown.partition(".")[2])
    return f'[{value:,.{decimals}f}]({path}{space}"{name}")'


if __name__ == "__main__":
    renew_all()
