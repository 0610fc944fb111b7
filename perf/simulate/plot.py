"""Draws what `perf.simulate` found: for each case how many loads a policy needs against the slowest hundredth of its requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from perf.simulate.policies import OURS, ROUND_ROBIN
from perf.simulate.report import LIMIT_S, Case, Report

_LOOKS = {
    ROUND_ROBIN: ("#b8b8b8", "s"), "random": ("#8c8c8c", "D"), "least outstanding": ("#d9b26f", "^"), "hash": ("#c1666b", "v"),
    "bounded hash": ("#e09f3e", "P"), "ModelMesh": ("#8d6aa8", "X"), "ModelMesh, times scaled": ("#3a7d44", "X"), OURS: ("#1f5fa8", "o"),
}  # fmt: skip
_COLUMNS = 4


def draw(report: Report, path: Path) -> None:
    """Write the plot."""
    fleets = report.names("fleet")
    columns = min(_COLUMNS, len(fleets))
    rows = -(-len(fleets) // columns)
    figure = Figure(figsize=(4.2 * columns, 1.1 + 3.5 * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis, fleet in zip(axes, fleets, strict=False):
        _draw(axis, report, fleet)
    for axis in axes[len(fleets) :]:
        axis.set_visible(False)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    figure.suptitle(
        "Loads needed, and p99 of what was answered, by policy: left and down is better. Filled: 99 % of all requests within 100 ms, "
        "refused ones being late; dashed: clairvoyant bound",
        fontsize=11,
    )
    figure.savefig(path, dpi=110)


def _draw(axis: Any, report: Report, fleet: str) -> None:
    for policy in [case.policy for case in report.runs if case.fleet == fleet]:
        run, (colour, marker) = report.median(Case(fleet, policy)), _LOOKS[policy]
        face = colour if run.part_within >= 0.99 else "none"
        size = 11 if policy == OURS else 8
        axis.plot([run.loads], [run.p99_ms], marker, label=policy, color=colour, markerfacecolor=face, markersize=size, markeredgewidth=1.8)
    bound = report.bound(fleet)
    axis.axvline(bound, color="#444444", linestyle="--", linewidth=1)
    axis.axhline(1000 * LIMIT_S, color="#444444", linewidth=0.6)
    axis.set_xscale("log")
    axis.set_yscale("log")
    for each in (axis.xaxis, axis.yaxis):
        each.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=8))
        each.set_major_formatter(lambda value, _: f"{value:,g}")
        each.set_minor_formatter(NullFormatter())
    axis.tick_params(labelsize=8)
    axis.set_title(fleet, loc="left", fontsize=10)
    axis.set_xlabel("loads", fontsize=8)
    axis.set_ylabel("p99 in ms", fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
