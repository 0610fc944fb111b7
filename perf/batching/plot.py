"""Draws what `perf.batching` measured: sequences per second and the short ones' p99 of each way, a row for each variant."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from perf.batching.report import LENGTH_AWARE, Report
from perf.measurement.bars import LEGEND_PAD, draw_bars, draw_legend

_COLOURS = {
    LENGTH_AWARE: "#1f5fa8", "one-by-one": "#9cc5e3", "triton": "#b8b8b8", "first-come": "#e09f3e", "padded-256": "#c1666b",
    "padded-512": "#6d1a36",
}  # fmt: skip
_FIGURES = (("sequences_per_s", "sequences/s"), ("short_p99_ms", "p99 of the short ones, ms"))


def draw(report: Report, path: Path) -> None:
    """Write the plot."""
    variants, mixes = report.names("variant"), report.names("mix")
    figure = Figure(figsize=(14, 4.1 * len(variants) + 0.4), layout="constrained")
    axes = figure.subplots(len(variants), len(_FIGURES), squeeze=False)
    for variant, row in zip(variants, axes, strict=True):
        for axis, (field, label) in zip(row, _FIGURES, strict=True):
            values = {(case.mix, case.way): getattr(report.median(case), field) for case in report.runs if case.variant == variant}
            draw_bars(axis, values, mixes, _COLOURS)
            axis.set_title(f"{variant}: {label} (logarithmic)", loc="left", fontsize=11, pad=LEGEND_PAD)
        draw_legend(row[0])
    options = report.options
    figure.suptitle(f"Batching mixed lengths, {options['callers']} callers; medians of {options['rounds']} rounds")
    figure.savefig(path, dpi=110)
