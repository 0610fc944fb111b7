"""What `perf.embedding` measured: written as JSON and as a summary to read, printed, held against the targets."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from perf.embedding_stages import MIX as STAGES_MIX
from perf.embedding_stages import Stages
from perf.gateway_report import commit, machine
from perf.interleaved import median_of
from perf.markdown import figure, table
from perf.scenario_report import ScenarioReport

BARE = "onnxruntime"
_MEASURED = "tidegate-http"
"""The one that targets are about; the other doors are in the tables."""


@dataclass(frozen=True, slots=True)
class Case:
    mix: str
    repeats: float
    callers: int
    """0 for bare ONNX Runtime, which has none."""
    peer: str

    @property
    def workload(self) -> str:
        return f"{self.mix}, {self.repeats:.0%} repeats" if self.repeats else self.mix

    def describe(self) -> str:
        return f"{self.workload}, {self.callers} callers: {self.peer}"


@dataclass(frozen=True, slots=True)
class Run:
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    short_p99_ms: float
    long_p99_ms: float
    cpu_ms: float
    """Of all the peer's processes, per request."""
    client_share: float
    """CPU that the load generator took, of one core."""
    errors: int
    batch: int = 1
    """That was best for bare ONNX Runtime."""

    @classmethod
    def of_bare(cls, requests_per_s: float, alone_ms: Sequence[float], batch: int) -> Run:
        """Throughput at the best batch, latencies of sequences alone."""
        p50_ms, p99_ms = median(alone_ms), sorted(alone_ms)[int(0.99 * (len(alone_ms) - 1))]
        return cls(requests_per_s, p50_ms, p99_ms, p99_ms, p99_ms, 1e3 * (os.cpu_count() or 1) / requests_per_s, 0.0, 0, batch)


@dataclass(frozen=True, slots=True)
class Target:
    """One line of DESIGN.md's: what of Tidegate, against what of whom."""

    what: str
    case: Case
    against: Case | None
    field: str
    limit: float
    at_least: bool


_ALONE, _LOADED, _REPEATED = Case("95/5", 0.0, 1, _MEASURED), Case("95/5", 0.0, 32, _MEASURED), Case("95/5", 0.3, 32, _MEASURED)
_EQUAL_ALONE, _EQUAL_LOADED = Case("equal", 0.0, 1, _MEASURED), Case("equal", 0.0, 32, _MEASURED)
TARGETS = (
    Target("p50 alone, Flask + PyTorch's / ours", _ALONE, replace(_ALONE, peer="flask"), "p50_ms", 8.0, at_least=True),
    Target("throughput, ours / Flask + PyTorch's", _LOADED, replace(_LOADED, peer="flask"), "requests_per_s", 15.0, at_least=True),
    Target("throughput, ours / FastAPI + httpx + pad 512's", _REPEATED, replace(_REPEATED, peer="fastapi-httpx-512"), "requests_per_s",
           60.0, at_least=True),
    Target("p50 of 16 tokens, ms", _EQUAL_ALONE, None, "p50_ms", 1.5, at_least=False),
    Target("p99 of 16 tokens, ms", _EQUAL_ALONE, None, "p99_ms", 4.0, at_least=False),
    Target("throughput of 16 tokens, ours / bare ONNX Runtime's", _EQUAL_LOADED, Case("equal", 0.0, 0, BARE), "requests_per_s", 0.6,
           at_least=True),
)  # fmt: skip


@dataclass(frozen=True)
class Report(ScenarioReport):
    name = "embedding"

    stages: Mapping[int, Stages]
    agreement: Mapping[str, Mapping[str, float]]

    def median(self, case: Case) -> Run | None:
        """None for what was not measured."""
        return median_of(self.results[case]) if case in self.results else None

    def figures(self) -> dict[str, Any]:
        stages = {callers: asdict(each) for callers, each in self.stages.items()}
        return {"agreement_with_pytorch": self.agreement, "stages_ms": stages}

    def markdown(self) -> str:
        """The summary."""
        workloads = list(dict.fromkeys(case.workload for case in self.results))
        parts = [self._head(), self._target_table(), *map(self._workload, workloads), self._stages()]
        return "\n\n".join(part for part in parts if part) + "\n"

    def _head(self) -> str:
        hardware = machine()
        worst = min((each["cosine_min"] for each in self.agreement.values()), default=float("nan"))
        client = max(median_of(runs).client_share for runs in self.results.values())
        measured = (
            f"`{self.command()}`, commit {commit()}, {hardware['machine']}, {hardware['cpus']} CPUs that clients and servers share, no GPU "
            f"used; variant `{self.arguments.variant}`. Medians of {self.arguments.rounds} interleaved rounds of "
            f"{self.arguments.duration_s:g} s."
        )
        checked = (
            f"All answers were compared with PyTorch's before anything was measured: the worst cosine is {worst:.4f}. The load "
            f"generator is one process, which took {client:.0%} of one core at most."
        )
        texts = f"Texts: {'; '.join(self.texts)}."
        lines = ["# Embedding texts", measured, texts, checked, "![throughput, latency and stages](embedding.png)"]
        return "\n\n".join(lines)

    def _target_table(self) -> str:
        rows = []
        for target in TARGETS:
            run = self.median(target.case)
            other = self.median(target.against) if target.against else None
            if run is None or (target.against and other is None):
                continue
            value = ratio(
                getattr(run, target.field), getattr(other, target.field) if other else None, is_latency=target.field.endswith("_ms")
            )
            is_met = value >= target.limit if target.at_least else value <= target.limit
            limit = f"{'>=' if target.at_least else '<='} {target.limit:g}"
            rows.append(
                (target.what, target.case.workload, str(target.case.callers), figure(value), limit, "met" if is_met else "**not met**")
            )
        return "## Targets\n\n" + table(("target", "mix", "callers", "measured", "wanted", ""), rows) if rows else ""

    def _workload(self, workload: str) -> str:
        rows = []
        for case in (case for case in self.results if case.workload == workload):
            run = median_of(self.results[case])
            kind = f"batches of {run.batch:.0f}, p50 and p99 alone" if case.peer == BARE else str(case.callers)
            figures = (run.requests_per_s, run.p50_ms, run.p99_ms, run.short_p99_ms, run.long_p99_ms, run.cpu_ms)
            rows.append((kind, case.peer, *map(figure, figures), f"{run.client_share:.0%}", f"{run.errors:.0f}"))
        head = ("callers", "peer", "requests/s", "p50 ms", "p99 ms", "short p99", "long p99", "CPU ms/request", "client", "errors")
        return f"## {workload}\n\n" + table(head, rows)

    def _stages(self) -> str:
        if not self.stages:
            return ""
        rows = [(str(callers), *map(figure, asdict(each).values()), figure(each.total)) for callers, each in sorted(self.stages.items())]
        names = [name.replace("_", " ") for name in asdict(next(iter(self.stages.values())))]
        note = (
            f"Mean milliseconds of a request, mix `{STAGES_MIX}`, binary HTTP; `gateway` and `scheduling` by difference. `encoder` is a "
            "mean batch, so that with many callers some of what larger batches take is under `scheduling`."
        )
        return f"## Where the time goes\n\n{note}\n\n" + table(("callers", *names, "together"), rows)


def ratio(value: float, other: float | None, *, is_latency: bool) -> float:
    """How many times better than the other: less time or more requests; the value itself where there is no other."""
    if other is None:
        return value
    return other / value if is_latency else value / other
