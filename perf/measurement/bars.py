"""Groups of bars on a logarithmic scale, each bar with its value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.ticker import NullFormatter

LEGEND_PAD = 26
"""Points between an axis and its title, where a row of a legend lies between them."""


def draw_bars(axis: Any, values: Mapping[tuple[Any, str], float], groups: Sequence[Any], colours: Mapping[str, str]) -> None:
    """`values` by group and series; a series that a group lacks leaves its place free, in the order of `colours`."""
    series = [name for name in colours if any(name == each for _, each in values)]
    width = 0.88 / len(series)
    for index, name in enumerate(series):
        shown = [(at, values[group, name]) for at, group in enumerate(groups) if (group, name) in values]
        places = [at + (index - (len(series) - 1) / 2) * width for at, _ in shown]
        bars = axis.bar(places, [value for _, value in shown], width * 0.94, color=colours[name], label=name)
        axis.bar_label(bars, fmt=compact, fontsize=8, padding=1)
    axis.set_yscale("log")
    axis.set_ylim(min(values.values()) / 2, max(values.values()) * 2)
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set_xticks(range(len(groups)), [str(group) for group in groups])
    axis.spines[["top", "right"]].set_visible(False)


def draw_legend(axis: Any) -> None:
    """Draw the legend in one row above the axis, below a title with `LEGEND_PAD`."""
    axis.legend(ncols=9, fontsize=9, frameon=False, loc="lower left", bbox_to_anchor=(-0.02, 0.99), columnspacing=1.1, handlelength=1.3)


def compact(value: float) -> str:
    """Three digits that count."""
    return f"{value / 1000:.3g}k" if value >= 1000 else f"{value:.3g}"
