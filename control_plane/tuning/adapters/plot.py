"""Plot of a tuning run: requests per second against p99, with a line for each candidate over its
concurrencies.

Called by `tuning/adapters/report`. Needs matplotlib, which serving does not (extra `tune`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from control_plane.tuning.domain.candidates import DEFAULT, Candidate
from control_plane.tuning.tuner import Row, TuningResult

_DEFAULT, _RECOMMENDED, _OTHER, _LIMIT = "#1f5fa8", "#3a7d44", "#b0b0b0", "#9e2a2b"
_OTHER_MARKERS = "DX^vP*<>hd"


def draw(result: TuningResult, path: Path, *, title: str, limit_ms: float) -> bool:
    """Write the plot as PNG; return False if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import LogLocator, NullFormatter
    except ImportError:
        return False
    figure = Figure(figsize=(10, 5.4), layout="constrained")
    axis = figure.subplots()
    _draw_candidates(axis, result)
    axis.axvline(limit_ms, color=_LIMIT, ls="--", lw=1.2, label=f"p99 limit, {limit_ms:g} ms")
    axis.set(xscale="log", ylim=(0, None), xlabel="p99 latency, ms (logarithmic)", ylabel="requests/s")
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_title(title, loc="left", fontsize=11)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    handles, labels = axis.get_legend_handles_labels()
    axis.legend(handles[::-1], labels[::-1], fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axis.text(0, -0.16, _footnote(result), transform=axis.transAxes, fontsize=8, color="#555555")
    figure.savefig(path, dpi=130)
    return True


def _draw_candidates(axis: Any, result: TuningResult) -> None:
    curves: dict[Candidate, list[Row]] = {}
    for row in result.rows():
        curves.setdefault(row.candidate, []).append(row)
    markers = iter(_OTHER_MARKERS * len(curves))
    for candidate, curve in reversed(curves.items()):
        if candidate == result.recommendation.candidate:
            _draw_main(axis, curve, f"{candidate.label} (recommended)", _RECOMMENDED)
        elif candidate == DEFAULT:
            _draw_main(axis, curve, "default", _DEFAULT)
        else:
            axis.plot(*_points(curve), color=_OTHER, lw=1, ms=5, marker=next(markers), label=candidate.label)


def _draw_main(axis: Any, curve: Sequence[Row], label: str, colour: str) -> None:
    axis.plot(*_points(curve), color=colour, lw=2.4, ms=7, marker="o", label=label, zorder=3)
    for row, *where in zip(curve, *_points(curve), strict=True):
        axis.annotate(
            str(row.level.concurrency), where, (5, 5), textcoords="offset points", fontsize=8, color=colour, weight="bold", zorder=5
        )


def _points(curve: Sequence[Row]) -> tuple[list[float], list[float]]:
    return [row.level.p99_ms for row in curve], [row.level.throughput for row in curve]


def _footnote(result: TuningResult) -> str:
    rounds = max((len(each) for each in result.rounds.values()), default=0)
    finalists = len(result.rounds)
    return (
        f"Numbers at points: requests in flight. Finalists ({finalists}): medians of {rounds} rounds, measured in turns; others: one round."
    )
