"""Report of a tuning run: the recommended configuration, the table of measurements (text and JSON), and a
plot.

Called by `tidegate tune`. Only the plot needs matplotlib.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from control_plane.core.errors import StartupError
from control_plane.tuning.adapters.config import TunedConfig
from control_plane.tuning.adapters.plot import draw
from control_plane.tuning.domain.candidates import DEFAULT, Candidate
from control_plane.tuning.tuner import TuningResult

MATPLOTLIB_IS_MISSING = "plot.png was not drawn: it needs matplotlib: run `make extras`"


@dataclass(frozen=True, slots=True)
class Report:
    """A tuning run's result with what was asked: model, limit, requests and machine."""

    model: str
    tuned: TunedConfig
    result: TuningResult
    limit_ms: float
    machine: Mapping[str, Any]
    mix: str
    """File that the requests came from."""


def write_report(report: Report, folder: Path) -> list[str]:
    """Write everything into `folder`; return notes on what could not be done. Raises StartupError if it
    cannot be written.
    """
    recommendation = report.result.recommendation
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.pbtxt").write_text(
            report.tuned.text_with_reason(recommendation.candidate, recommendation.reason), encoding="utf-8"
        )
        (folder / "table.json").write_text(json.dumps(as_fields(report), indent=1) + "\n", encoding="utf-8")
        with (folder / "table.txt").open("w", encoding="utf-8") as text:
            print_table(report, Console(file=text, width=120, color_system=None))
        drawn = draw(report.result, folder / "plot.png", title=headline(report), limit_ms=report.limit_ms)
        return [] if drawn else [MATPLOTLIB_IS_MISSING]
    except OSError as exc:
        raise StartupError(f"--out {folder} cannot be written: {exc}") from exc


def apply_recommendation(report: Report) -> str:
    """Write the recommended configuration to the model; return what was done. Raises StartupError if it
    cannot be written.
    """
    recommendation, path = report.result.recommendation, report.tuned.path
    if recommendation.candidate == DEFAULT:
        return f"{path} stays as it is"
    try:
        backup = _unused(path)
        shutil.copy2(path, backup)
        # Replaced atomically: a load may read it at any moment.
        partial = path.with_name(f".{path.name}.partial")
        partial.write_text(report.tuned.text_with_reason(recommendation.candidate, recommendation.reason), encoding="utf-8")
        partial.replace(path)
    except OSError as exc:
        raise StartupError(f"--apply: {path} cannot be written: {exc}") from exc
    return f"written to {path}; the old configuration is in {backup.name}"


def _unused(path: Path) -> Path:
    """Return a path beside `path` for its backup, which does not exist yet, so that no earlier backup is
    replaced.
    """
    names = (f"{path.name}.bak{number or ''}" for number in count())
    return next(backup for name in names if not (backup := path.with_name(name)).exists())


def print_table(report: Report, console: Console) -> None:
    """Print the table and the recommendation for people."""
    result = report.result
    table = Table("candidate", "in flight", "requests/s", "p50 ms", "p99 ms", "rounds", box=None, pad_edge=False)
    for row in result.rows():
        level, misses = row.level, row.level.p99_ms > report.limit_ms
        p99 = f"[red]{level.p99_ms:.1f} >[/]" if misses else f"{level.p99_ms:.1f}"
        figures = (str(level.concurrency), f"{level.throughput:.0f}", f"{level.p50_ms:.1f}", p99, str(row.rounds))
        table.add_row(_named(row.candidate, result), *figures)
    for candidate, reason in result.failures.items():
        table.add_row(candidate.label, "", "", "", "", escape(f"cannot be served: {reason.strip().splitlines()[-1]}"))
    console.print(table)
    console.print(f"\n{headline(report)}\n{result.recommendation.reason}", highlight=False, soft_wrap=True)


def headline(report: Report) -> str:
    """Return the recommendation in one line."""
    recommended = report.result.recommendation.candidate
    flags = f", served with `tidegate serve {' '.join(recommended.serve_flags)}`" if recommended.serve_flags else ""
    return f"Recommended for {report.model}: {recommended.label}{flags}"


def _named(candidate: Candidate, result: TuningResult) -> str:
    return f"[bold]{candidate.label}[/]" if candidate == result.recommendation.candidate else candidate.label


def as_fields(report: Report) -> dict[str, Any]:
    """Return the report for programs, as `table.json` has it."""
    recommendation = report.result.recommendation
    return {
        "model": report.model,
        "configuration": str(report.tuned.path),
        "mix": report.mix,
        "p99_limit_ms": report.limit_ms,
        "machine": report.machine,
        "recommended": {
            "changes": _changes(recommendation.candidate),
            "serve_flags": recommendation.candidate.serve_flags,
            "reason": recommendation.reason,
        },
        "medians": [{"candidate": row.candidate.label, "rounds": row.rounds, **asdict(row.level)} for row in report.result.rows()],
        "final_rounds": [
            {"candidate": candidate.label, "changes": _changes(candidate), "rounds": [[asdict(level) for level in each] for each in rounds]}
            for candidate, rounds in report.result.rounds.items()
        ],
        "failures": {candidate.label: reason for candidate, reason in report.result.failures.items()},
    }


def _changes(candidate: Candidate) -> dict[str, int | str]:
    return {knob.name.lower(): value for knob, value in candidate.changes}
