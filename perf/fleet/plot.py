"""Draws what each Triton of `perf.fleet` held over time, a row for each way, with the budget above the empty Triton."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from perf.fleet.report import Report

_MB = 1e6
_COLOURS = ("#1f5fa8", "#e09f3e", "#6d1a36", "#5a9367")


def draw(report: Report, path: Path) -> None:
    """Write the plot."""
    memory = report.memory()
    figure = Figure(figsize=(11, 2.9 * len(memory) + 0.5), layout="constrained")
    rows = figure.subplots(len(memory), 1, squeeze=False, sharey=True)
    for (way, each), (axis,) in zip(memory.items(), rows, strict=True):
        for number, samples in enumerate(each.held_bytes.values()):
            axis.plot(each.times_s, [size / _MB for size in samples], color=_COLOURS[number % len(_COLOURS)], linewidth=1.2)
        budget_mb = (each.empty_bytes() + report.budget_bytes) / _MB
        axis.axhline(budget_mb, color="#444444", linestyle="--", linewidth=1)
        axis.text(0, budget_mb, " an empty Triton and the budget", va="top", fontsize=8)
        axis.set_title(f"{way}: MB held by each Triton and its models (PSS)", loc="left", fontsize=10)
        axis.set_ylim(0, None)
    rows[-1][0].set_xlabel("s")
    figure.savefig(path, dpi=110)
