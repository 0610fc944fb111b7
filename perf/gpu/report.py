"""The report of `perf.gpu`: throughput and latency of each server, one short text or many pages in a request."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from perf.measurement import report
from perf.measurement.markdown import figure, table
from perf.measurement.report import Target
from perf.measurement.runs import ClosedLoopRun

TEXT, BATCH = "one text", "a batch of pages"
OURS, STRAIGHT, ON_CPU, FLASK = "tidegate-http", "triton-http", "tidegate-http on the CPU", "flask"
_ALONE = 1


@dataclass(frozen=True, slots=True)
class Case:
    load: str
    callers: int
    peer: str

    def of(self, peer: str) -> Case:
        """Return the case of the same load at another server."""
        return replace(self, peer=peer)

    def describe(self) -> str:
        return f"{self.load}, {self.callers} callers: {self.peer}"


@dataclass(frozen=True, slots=True)
class Run(ClosedLoopRun):
    tokens_per_s: float


_TARGETS = (
    Target("p50_ms", "one text of 16 tokens, 1 caller: p50, ms", 1.0, at_least=False),
    Target("p99_ms", "one text of 16 tokens, 1 caller: p99, ms", 2.0, at_least=False),
    Target("p50_flask_times", "one text, 1 caller: Flask + PyTorch's p50 on the same GPU / ours", 10.0, at_least=True),
    Target("million_tokens_per_s", "batches of pages: million tokens/s at the best number of callers", 5.0, at_least=True),
)


class Report(report.Report):
    name, title, case, run = "gpu", "Embedding texts on a GPU", Case, Run

    def figures(self) -> dict[str, float]:
        found = {"million_tokens_per_s": max(self._tokens_per_s(), default=math.nan) / 1e6}
        if (alone := Case(TEXT, _ALONE, OURS)) in self.runs:
            found |= {"p50_ms": self.median(alone).p50_ms, "p99_ms": self.median(alone).p99_ms}
            for peer, name in ((FLASK, "flask"), (ON_CPU, "cpu"), (STRAIGHT, "triton")):
                found[f"p50_{name}_times"] = self.over_rounds(alone, alone.of(peer), lambda own, other: other.p50_ms / own.p50_ms)
        for load, name in ((TEXT, "texts"), (BATCH, "pages")):
            most = Case(load, max((case.callers for case in self.runs if case.load == load), default=0), OURS)
            for peer, theirs in ((FLASK, "flask"), (ON_CPU, "cpu"), (STRAIGHT, "triton")):
                if most in self.runs:
                    found[f"{name}_{theirs}_times"] = self.over_rounds(
                        most, most.of(peer), lambda own, other: own.requests_per_s / other.requests_per_s
                    )
        return found

    def targets(self) -> Sequence[Target]:
        return _TARGETS

    def summary(self) -> str:
        more = self.result.more
        worst = min(each["cosine_min"] for each in more["agreement_with_pytorch"].values())
        told = (
            f"{more['gpu']}, which served the encoder's `{' and '.join(more['served_variants'])}`. The worst cosine with PyTorch's answers "
            f"was {worst:.4f}. Pages came {self.options['batch']} in a request."
        )
        head = ("load", "callers", "server", "requests/s", "tokens/s", "p50 ms", "p99 ms", "CPU ms/request", "client", "errors")
        return f"{told}\n\n" + table(head, [self._row(case) for case in self.runs])

    def _row(self, case: Case) -> tuple[str, ...]:
        run = self.median(case)
        figures = map(figure, (run.requests_per_s, run.tokens_per_s, run.p50_ms, run.p99_ms, run.cpu_ms))
        return case.load, str(case.callers), case.peer, *figures, f"{run.client_share:.0%}", f"{run.errors:g}"

    def _tokens_per_s(self) -> list[float]:
        return [self.median(case).tokens_per_s for case in self.runs if case.load == BATCH and case.peer == OURS]
