"""The report of `perf.long_documents`: how long a document takes, and what each part of the platform brings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perf.measurement import report
from perf.measurement.markdown import figure, table
from perf.measurement.report import Target

FLASK, SHIPPED = "Flask and PyTorch", "as shipped"
NO_CACHE, NO_INT8, NO_ONNX = "without the cache", "without INT8 (FP32 in ONNX Runtime)", "without ONNX (PyTorch, bf16)"
CALL_BY_CALL = "one page a call, in turn"
PRUNED = "with pruning (INT8, pruned)"
WAYS = (FLASK, SHIPPED, NO_CACHE, CALL_BY_CALL, NO_INT8, NO_ONNX, PRUNED)
AT_PEAK = (FLASK, SHIPPED)
"""Measured with many callers, too."""

_LESS_PERCENT = 40.0


@dataclass(frozen=True, slots=True)
class Case:
    way: str
    callers: int


@dataclass(frozen=True, slots=True)
class Run:
    mean_s: float
    """From handing a document in to having its last vector."""
    documents_per_s: float
    hit_ratio: float
    errors: int


class Report(report.Report):
    name, title, case, run = "long-documents", "Documents of dozens of pages", Case, Run

    def figures(self) -> dict[str, float]:
        few, many = min(self.options["callers"]), max(self.options["callers"])
        found = {
            "less_time_percent": self._less_percent(few), "less_time_at_peak_percent": self._less_percent(many),
            "hits_percent": 100 * self.median(Case(SHIPPED, few)).hit_ratio,
        }  # fmt: skip
        return found | {f"times_{_key(way)}": self._times(way, few) for way in WAYS if way != SHIPPED and Case(way, few) in self.runs}

    def targets(self) -> Sequence[Target]:
        told = f"{min(self.options['callers'])} callers", f"{max(self.options['callers'])} callers, the peak"
        names = "less_time_percent", "less_time_at_peak_percent"
        return [
            Target(name, f"{callers}: less time a document than with Flask and PyTorch, %", _LESS_PERCENT, at_least=True)
            for name, callers in zip(names, told, strict=True)
        ]

    def summary(self) -> str:
        few, options = min(self.options["callers"]), self.options
        asked = (
            f"{options['documents']} documents of {options['pages']} pages a run, {options['repeats']:.0%} of them copies of an earlier "
            f"one, handed in over HTTP as JSON; servers on {options['cores']} core{'s' * (options['cores'] > 1)}, the callers on another. "
            f"`times` is the mean time beside `{SHIPPED}` in the same round."
        )
        rows = [
            (
                case.way, str(case.callers), figure(run.mean_s), figure(run.documents_per_s), f"{run.hit_ratio:.0%}",
                figure(self._times(case.way, case.callers)), f"{run.errors:g}",
            )
            for case in sorted(self.runs, key=lambda case: (case.callers != few, WAYS.index(case.way)))
            for run in (self.median(case),)
        ]  # fmt: skip
        return f"{asked}\n\n" + table(("", "callers", "mean s", "documents/s", "pages cached", "times", "errors"), rows)

    def _less_percent(self, callers: int) -> float:
        return self.over_rounds(Case(SHIPPED, callers), Case(FLASK, callers), lambda own, plain: 100 * (1 - own.mean_s / plain.mean_s))

    def _times(self, way: str, callers: int) -> float:
        return self.over_rounds(Case(way, callers), Case(SHIPPED, callers), lambda other, own: other.mean_s / own.mean_s)


def _key(way: str) -> str:
    words = "".join(letter if letter.isalnum() else " " for letter in way.lower())
    return "_".join(words.split())
