"""Draws what `perf.embedding` measured: throughput and latency of each peer by workload, and where the time of a request goes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from perf.embedding.report import BARE, STAGES_MIX, Report
from perf.measurement.bars import LEGEND_PAD, compact, draw_bars, draw_legend

_COLOURS = {
    "fastapi-httpx-512": "#6d1a36", "fastapi": "#c1666b", "flask": "#e09f3e", "triton-http": "#b8b8b8", "triton-grpc": "#8a8a8a",
    "tidegate-json": "#9cc5e3", "tidegate-http": "#1f5fa8", "tidegate-grpc": "#5b8fd0", BARE: "#3a7d44",
}  # fmt: skip
_STAGE_COLOURS = ("#1f5fa8", "#9cc5e3", "#c7c7c7", "#3a7d44", "#c1666b")
_DARK = ("#1f5fa8", "#3a7d44")


def draw(report: Report, path: Path) -> None:
    """Write the plot."""
    figure = Figure(figsize=(13.5, 12.5), layout="constrained")
    throughput, latency, stages = figure.subplots(3, 1, height_ratios=[1, 1, 0.62])
    loaded, alone = max(report.options["callers"]), min(report.options["callers"])
    workloads = list(dict.fromkeys(case.workload for case in report.runs))
    draw_bars(throughput, _values(report, loaded, "requests_per_s"), workloads, _COLOURS)
    throughput.set_title(
        f"Requests/s, {_callers(loaded)} (logarithmic; bare ONNX Runtime: batches of equal lengths, no server)", loc="left", pad=LEGEND_PAD
    )
    draw_legend(throughput)
    draw_bars(latency, _values(report, alone, "p50_ms"), workloads, _COLOURS)
    latency.set_title(f"p50 in ms, {_callers(alone)} (logarithmic; bare ONNX Runtime: one at a time, no server)", loc="left")
    _draw_stages(stages, report)
    served = " and ".join(report.result.more["served_variants"])
    figure.suptitle(f"Embedding texts, variant {served}, medians of {report.options['rounds']} rounds", fontsize=13)
    figure.savefig(path, dpi=110)


def _values(report: Report, callers: int, field: str) -> dict[tuple[str, str], float]:
    """Return the values to draw, by workload and peer."""
    return {
        (case.workload, case.peer): getattr(report.median(case), field)
        for case in report.runs
        if case.callers == (0 if case.peer == BARE else callers)
    }


def _callers(number: int) -> str:
    return f"{number} caller{'s' * (number > 1)}"


def _draw_stages(axis: Any, report: Report) -> None:
    """A bar for each number of callers, as shares of the whole, which its label says."""
    stages = report.stages()
    callers = sorted(stages, reverse=True)
    if not callers:
        axis.set_visible(False)
        return
    left = [0.0] * len(callers)
    # A difference within the noise may be less than nothing.
    wholes = {each: sum(max(0.0, part) for part in asdict(stages[each]).values()) for each in callers}
    for name, colour in zip(asdict(stages[callers[0]]), _STAGE_COLOURS, strict=True):
        shares = [max(0.0, getattr(stages[each], name)) / wholes[each] * 100 for each in callers]
        bars = axis.barh(range(len(callers)), shares, left=left, color=colour, label=name.replace("_", " "), height=0.62)
        values = [getattr(stages[each], name) for each in callers]
        labels = [compact(value) if share > 3.5 else "" for value, share in zip(values, shares, strict=True)]
        axis.bar_label(bars, labels, label_type="center", fontsize=9, color="white" if colour in _DARK else "black")
        left = [start + share for start, share in zip(left, shares, strict=True)]
    axis.set_yticks(range(len(callers)), [f"{_callers(each)}\n{stages[each].total:.2f} ms" for each in callers])
    axis.set_xlabel("% of a mean request; in the bars ms")
    axis.set_title(f"Where the time goes: mix {STAGES_MIX}, binary HTTP through the gateway", loc="left", pad=LEGEND_PAD)
    draw_legend(axis)
    axis.spines[["top", "right"]].set_visible(False)
