"""Draws what `perf.gateway` measured: throughput and CPU per request, a row for each protocol and size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from perf.gateway.report import OVER_SOCKETS, Report, size_of

_COLOURS = {
    "straight": "#b8b8b8", "nginx": "#3a7d44", "tidegate": "#1f5fa8", "tidegate-keys": "#9cc5e3",
    "starlette-aiohttp": "#e09f3e", "fastapi-httpx": "#9e2a2b",
    "grpc-aio": "#e09f3e", "grpc-aio-to-http": "#9e2a2b",
}  # fmt: skip
_FIGURES = (("requests_per_s", "requests/s"), ("cpu_us", "CPU us per request"))


def draw(report: Report, path: Path) -> None:
    """Write the plot."""
    rows = list(dict.fromkeys((case.protocol, case.tensor_bytes) for case in report.runs))
    figure = Figure(figsize=(13, 3.1 * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), 2, squeeze=False)
    for (protocol, tensor_bytes), row in zip(rows, axes, strict=True):
        cases = [case for case in report.runs if (case.protocol, case.tensor_bytes) == (protocol, tensor_bytes)]
        cases = [case for case in cases if case.peer != OVER_SOCKETS]  # measured for latency, with the fewest connections
        for axis, (name, label) in zip(row, _FIGURES, strict=True):
            values = {(case.peer, case.connections): getattr(report.median(case), name) for case in cases}
            _draw_bars(axis, values, report.names("connections"))
            axis.set_title(f"{protocol}, {size_of(tensor_bytes)}: {label}", loc="left", fontsize=10)
        row[0].legend(fontsize=8, frameon=False, ncols=3, loc="upper left")
    rounds = f"medians of {report.options['rounds']} rounds"
    figure.suptitle(f"One hop, upstream: {report.options['upstream']}; {rounds}; logarithmic scales, each its own", fontsize=12)
    figure.savefig(path)


def _draw_bars(axis: Any, values: Mapping[tuple[str, int], float], connections: Sequence[int]) -> None:
    """A group of bars for each number of connections, each bar with its value; zeros (nobody's CPU) are left out."""
    peers = [peer for peer in dict.fromkeys(peer for peer, _ in values) if any(values[peer, number] for number in connections)]
    width = 0.86 / len(peers)
    for index, peer in enumerate(peers):
        at = [group + (index - (len(peers) - 1) / 2) * width for group in range(len(connections))]
        bars = axis.bar(at, [values[peer, number] for number in connections], width * 0.94, color=_COLOURS[peer], label=peer)
        axis.bar_label(bars, fmt=_short, fontsize=7, padding=1)
    axis.set_yscale("log")
    axis.set_ylim(min(filter(None, values.values())) / 3, max(values.values()) * 6)
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set_xticks(range(len(connections)), [f"{number} connection{'s' * (number > 1)}" for number in connections], fontsize=8)
    axis.tick_params(axis="y", labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)


def _short(value: float) -> str:
    return f"{value / 1000:.3g}k" if value >= 1000 else f"{value:.3g}"
