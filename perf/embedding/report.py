"""The report of `perf.embedding`: throughput and latency of each peer, and where the time of a request goes."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median

from perf.measurement import report
from perf.measurement.markdown import figure, table
from perf.measurement.report import Target
from perf.measurement.runs import ClosedLoopRun

BARE = "onnxruntime"
OURS = "tidegate-http"
"""The one that targets are about; the other protocols are in the tables."""
_FLASK, _PADDED, _STRAIGHT = "flask", "fastapi-httpx-512", "triton-http"
_SHOWN = (_FLASK, "fastapi", _PADDED, _STRAIGHT, OURS, "tidegate-grpc", BARE)
_ALONE, _LOADED = 1, 32
STAGES_MIX = "equal"


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

    def of(self, peer: str) -> Case:
        """The same of another."""
        return replace(self, peer=peer, callers=0 if peer == BARE else self.callers)

    def describe(self) -> str:
        return f"{self.workload}, {self.callers} callers: {self.peer}"


@dataclass(frozen=True, slots=True)
class Run(ClosedLoopRun):
    short_p99_ms: float
    long_p99_ms: float
    hit_ratio: float
    """Part of the texts that the gateway's response cache had."""
    batch: int = 1
    """Texts in a batch that was best for bare ONNX Runtime."""

    @classmethod
    def of_bare(cls, requests_per_s: float, alone_ms: Sequence[float], batch: int) -> Run:
        """Throughput at the best batch, latencies of sequences alone."""
        p50_ms, p99_ms = median(alone_ms), sorted(alone_ms)[int(0.99 * (len(alone_ms) - 1))]
        return cls(
            requests_per_s=requests_per_s,
            p50_ms=p50_ms,
            p99_ms=p99_ms,
            cpu_ms=1e3 * (os.cpu_count() or 1) / requests_per_s,
            client_share=0.0,
            errors=0,
            short_p99_ms=p99_ms,
            long_p99_ms=p99_ms,
            hit_ratio=0.0,
            batch=batch,
        )


@dataclass(frozen=True, slots=True)
class Stages:
    """Milliseconds of a mean request; together they are its latency at the client, through the gateway."""

    gateway: float
    """What the gateway adds to the latency straight at Triton."""
    client_and_http: float
    """Straight at Triton: its latency at the client less what Triton counts."""
    encoder_wait: float
    """Queued, in Triton and in the backend."""
    encoder: float
    """While the batch that it is in is computed."""
    scheduling: float
    """The rest of what Triton counts: tokenizing, the ensemble's step, and the way to and from the model's process."""

    @property
    def total(self) -> float:
        return sum(asdict(self).values())


_TEXT_ALONE, _TEXTS, _REPEATED = (
    Case("95/5", repeats, callers, OURS) for repeats, callers in ((0.0, _ALONE), (0.0, _LOADED), (0.3, _LOADED))
)
_EQUAL_ALONE, _EQUAL = Case("equal", 0.0, _ALONE, OURS), Case("equal", 0.0, _LOADED, OURS)
_RATIOS: Mapping[str, tuple[Case, str, str]] = {
    "p50_flask_times": (_TEXT_ALONE, _FLASK, "p50_ms"),
    "throughput_of_flask": (_TEXTS, _FLASK, "requests_per_s"),
    "throughput_of_padded": (_REPEATED, _PADDED, "requests_per_s"),
    "throughput_of_triton": (_TEXTS, _STRAIGHT, "requests_per_s"),
    "throughput_of_bare": (_EQUAL, BARE, "requests_per_s"),
}
"""How many times better than another Tidegate is, by the figure's name."""
_TARGETS = (
    Target("p50_flask_times", "95/5, 1 caller: Flask + PyTorch's p50 / ours", 8.0, at_least=True),
    Target("throughput_of_flask", "95/5, 32 callers: throughput / Flask + PyTorch's", 15.0, at_least=True),
    Target("throughput_of_padded", "95/5 with 30 % repeats, 32 callers: throughput / FastAPI + httpx + pad 512's", 60.0, at_least=True),
    Target("equal_p50_ms", "16 tokens, 1 caller: p50, ms", 1.5, at_least=False),
    Target("equal_p99_ms", "16 tokens, 1 caller: p99, ms", 4.0, at_least=False),
    Target("throughput_of_bare", "16 tokens, 32 callers: throughput / bare ONNX Runtime's", 0.6, at_least=True),
)


class Report(report.Report):
    name, title, case, run, plot = "embedding", "Embedding texts", Case, Run, "png"

    def figures(self) -> dict[str, float]:
        found = {name: self._times_better(*ratio) for name, ratio in _RATIOS.items() if self._has(ratio[0], ratio[0].of(ratio[1]))}
        if self._has(_EQUAL_ALONE):
            found |= {"equal_p50_ms": self.median(_EQUAL_ALONE).p50_ms, "equal_p99_ms": self.median(_EQUAL_ALONE).p99_ms}
        if self._has(_REPEATED):
            found["repeats_hits_percent"] = 100 * self.median(_REPEATED).hit_ratio
        return found | {f"stage_{name}_ms": value for name, value in self.result.more["stages_ms"].get(str(_ALONE), {}).items()}

    def targets(self) -> Sequence[Target]:
        return _TARGETS

    def stages(self) -> dict[int, Stages]:
        """Return the stages of a mean request, by the number of callers."""
        return {int(callers): Stages(**each) for callers, each in self.result.more["stages_ms"].items()}

    def summary(self) -> str:
        peers = [peer for peer in _SHOWN if peer in self.names("peer")]
        loads = dict.fromkeys((case.mix, case.repeats, case.callers) for case in self.runs if case.callers)
        rows = []
        for case in (Case(*load, OURS) for load in loads):
            for field, told in (("p50_ms", "p50 ms"),) if case.callers == _ALONE else (("requests_per_s", "requests/s"),):
                cells = [self._cell(case.of(peer), field) for peer in peers]
                rows.append((f"{case.workload}, {told}", str(case.callers), *cells))
        return f"{self._served()}\n\n" + table(("", "callers", *peers), rows)

    def details(self) -> str:
        workloads = [self._workload(each) for each in dict.fromkeys(case.workload for case in self.runs)]
        return "\n\n".join(filter(None, [*workloads, self._stages()]))

    def _served(self) -> str:
        worst = min((each["cosine_min"] for each in self.result.more["agreement_with_pytorch"].values()), default=math.nan)
        client = max(self.median(case).client_share for case in self.runs)
        variants = " and ".join(self.result.more["served_variants"])
        told = (
            f"The encoder served `{variants}`; the worst cosine with PyTorch's answers was {worst:.4f}. "
            f"The load generator took {client:.0%} of one core at most."
        )
        hits = (
            f" Of the texts with repeats {self.median(_REPEATED).hit_ratio:.0%} were in the response cache." if self._has(_REPEATED) else ""
        )
        return told + hits

    def _cell(self, case: Case, field: str) -> str:
        return figure(getattr(self.median(case), field)) if case in self.runs else ""

    def _workload(self, workload: str) -> str:
        head = ("callers", "peer", "requests/s", "p50 ms", "p99 ms", "short p99", "long p99", "hits", "CPU ms/request", "client", "errors")
        return f"## {workload}\n\n" + table(head, [self._row(case) for case in self.runs if case.workload == workload])

    def _row(self, case: Case) -> tuple[str, ...]:
        run = self.median(case)
        callers = f"batches of {run.batch:.0f}, p50 and p99 alone" if case.peer == BARE else str(case.callers)
        figures = map(figure, (run.requests_per_s, run.p50_ms, run.p99_ms, run.short_p99_ms, run.long_p99_ms))
        return callers, case.peer, *figures, f"{run.hit_ratio:.0%}", figure(run.cpu_ms), f"{run.client_share:.0%}", f"{run.errors:g}"

    def _stages(self) -> str:
        stages = self.stages()
        if not stages:
            return ""
        rows = [(str(callers), *map(figure, asdict(each).values()), figure(each.total)) for callers, each in sorted(stages.items())]
        names = [name.replace("_", " ") for name in asdict(next(iter(stages.values())))]
        note = (
            f"Mean milliseconds of a request, mix `{STAGES_MIX}`, binary HTTP; `gateway` and `scheduling` by difference. `encoder` is a "
            "mean batch, so that with many callers some of what larger batches take is under `scheduling`."
        )
        return f"## Where the time goes\n\n{note}\n\n" + table(("callers", *names, "together"), rows)

    def _has(self, *cases: Case) -> bool:
        return all(case in self.runs for case in cases)

    def _times_better(self, case: Case, peer: str, field: str) -> float:
        """Less time, or more requests."""

        def compare(own: Run, other: Run) -> float:
            ours, theirs = getattr(own, field), getattr(other, field)
            return float(theirs / ours if field.endswith("_ms") else ours / theirs)

        return self.over_rounds(case, case.of(peer), compare)
