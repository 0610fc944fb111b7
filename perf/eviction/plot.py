"""Draws what `perf.eviction` found: how much of the gap each policy closes, and hit ratio by size for each trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from perf.eviction.report import BOUND, LRU, TARGET_SIZE_PERCENT, Report
from perf.policies import OURS

_COLOURS = {
    BOUND: "#444444", LRU: "#b8b8b8", "SIEVE": "#d9b26f", "S3-FIFO": "#e09f3e", "ARC": "#3a7d44", "W-TinyLFU": "#c1666b", "GDSF": "#8d6aa8",
    "theine": "#6d1a36", OURS: "#1f5fa8",
}  # fmt: skip
_COLUMNS = 6
_LEAST_SHOWN = -0.75


def draw(report: Report, path: Path) -> None:
    """Write the plot."""
    traces = report.names("trace")
    rows = -(-len(traces) // _COLUMNS)
    figure = Figure(figsize=(16.5, 4 + 2.9 * rows), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=[4, 2.9 * rows])
    size = TARGET_SIZE_PERCENT if TARGET_SIZE_PERCENT in report.options["sizes"] else report.options["sizes"][0]
    _draw_closed(above.subplots(), report, size)
    axes = list(below.subplots(rows, _COLUMNS, squeeze=False).flat)
    for axis, trace in zip(axes, traces, strict=False):
        _draw_trace(axis, report, trace)
    for axis in axes[len(traces) :]:
        axis.set_visible(False)
    axes[0].legend(fontsize=7, frameon=False)
    below.suptitle("Hit ratio in percent, by size", x=0.01, ha="left", fontsize=12)
    figure.savefig(path, dpi=110)


def _draw_closed(axis: Any, report: Report, size: float) -> None:
    policies = [policy for policy in report.names("policy") if policy not in (BOUND, LRU)]
    for row, policy in enumerate(reversed(policies)):
        closed = [max(_LEAST_SHOWN, report.closed(trace, size, policy)) for trace in report.names("trace")]
        axis.plot(closed, [row] * len(closed), "o", color=_COLOURS[policy], alpha=0.55, markersize=8, clip_on=False)
        mean = report.mean_closed(size, policy)
        axis.plot([mean, mean], [row - 0.35, row + 0.35], color=_COLOURS[policy], linewidth=3)
        axis.annotate(f"{mean:.0%}", (mean, row + 0.36), ha="center", va="bottom", fontsize=9, color=_COLOURS[policy])
    axis.axvline(0, color=_COLOURS[LRU], linewidth=1)
    axis.set_yticks(range(len(policies)), policies[::-1])
    axis.set_ylim(-0.6, len(policies) - 0.2)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.set_title(
        f"Part of the gap from LRU (0 %) to the clairvoyant bound (100 %) that is closed, at {size:g} %: each trace, and the mean. "
        f"What is below {_LEAST_SHOWN:.0%} is drawn there.",
        loc="left",
    )


def _draw_trace(axis: Any, report: Report, trace: str) -> None:
    sizes = sorted(report.options["sizes"])
    for policy in sorted(report.names("policy"), key=lambda policy: policy == OURS):
        ratios = [100 * report.median_at(trace, size, policy).hit_ratio for size in sizes]
        is_ours, is_bound = policy == OURS, policy == BOUND
        axis.plot(
            sizes,
            ratios,
            "--" if is_bound else "-",
            color=_COLOURS[policy],
            linewidth=2.2 if is_ours else 1.2,
            marker="o",
            markersize=3,
            label=policy,
        )
    axis.set_title(trace, loc="left", fontsize=10)
    axis.set_xscale("log")
    axis.set_xticks(sizes, [f"{size:g} %" for size in sizes])
    axis.minorticks_off()
    axis.spines[["top", "right"]].set_visible(False)
