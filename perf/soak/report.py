"""The report of `perf.soak`: what a million requests and a spike among them were answered, and what is held at the end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from perf.measurement import report
from perf.measurement.markdown import figure, table
from perf.measurement.report import Target
from perf.soak.asks import GRPC, HTTP
from perf.soak.held import GATEWAY, TRITON
from perf.soak.outcomes import DEADLINE_S

BEFORE, SPIKE, AFTER, COLD = "before the spike", "the spike", "after the spike", "cold models"
FLOODS = {HTTP: "the spike: h2load, HTTP", GRPC: "the spike: h2load, gRPC"}
"""Rows of what h2load sent in the spike, by protocol."""
_STEADY = (BEFORE, AFTER, COLD)
_HELD = {"mib": "memory", "descriptors": "open descriptors", "threads": "threads"}
_KINDS = {GATEWAY: "the gateway", TRITON: "both Tritons"}
_MOST_SAID = 12


@dataclass(frozen=True, slots=True)
class Case:
    part: str


@dataclass(frozen=True, slots=True)
class Run:
    requests: int
    answers: int
    refused: int
    """Requests that were refused politely."""
    left: int
    """Requests whose callers did not wait."""
    expired: int
    """Not answered within the deadline, or told so."""
    unsent: int
    """Requests for which the client had no free connection, or no time."""
    errors: int
    """Neither an answer nor a polite refusal, and not expired."""
    in_time_per_s: float
    """Answers within the deadline."""
    p50_ms: float
    p99_ms: float
    """99th percentile of the answers' latencies."""
    refused_p99_ms: float
    client_late_p99_ms: float
    """How late the client sent a request."""


class Report(report.Report):
    name, title, case, run = "soak", "A long time of steady traffic, and a spike in its middle", Case, Run

    def figures(self) -> dict[str, float]:
        steady = [self.median(Case(part)) for part in _STEADY if Case(part) in self.runs]
        spike = self.median(Case(SPIKE))
        spikes = [spike, *(self.median(Case(part)) for part in FLOODS.values() if Case(part) in self.runs)]
        more = self.result.more
        minutes_ms = more["minutes_p99_ms"]
        found = {
            "requests": sum(each.requests for each in (*steady, *spikes)),
            "errors_per_100000": 1e5 * _neither(steady) / max(1, sum(each.requests for each in steady)),
            "spike_errors": _neither(spikes),
            "last_minute_p99_times": minutes_ms[-1] / minutes_ms[0],
            "spike_p99_ms": spike.p99_ms,
            "spike_goodput": sum(each.in_time_per_s for each in spikes) / more["peak_per_s"],
            "normal_after_s": more["normal_after_s"],
            "peak_per_s": more["peak_per_s"],
        }
        for kind, (first, last) in more["held"].items():
            found |= {f"{kind}_{name}_times": last[name] / first[name] for name in _HELD}
        return {name: value for name, value in found.items() if not math.isnan(value)}

    def targets(self) -> Sequence[Target]:
        targets = [
            Target("requests", "requests", 1e6, at_least=True),
            Target("errors_per_100000", "outside the spike: errors that are no polite refusal, of 100,000", 1.0, at_least=False),
            Target("spike_errors", "in the spike: errors that are no polite refusal", 0.0, at_least=False),
            Target("last_minute_p99_times", "p99 of the last minute, times the first's", 1.5, at_least=False),
            Target("spike_p99_ms", "p99 of what is answered in the spike, ms", 1e3 * DEADLINE_S, at_least=False),
            Target("normal_after_s", "seconds after the spike until p99 is normal", 5.0, at_least=False),
        ]
        return targets + [
            Target(f"{kind}_{name}_times", f"{what} of {whose} at the end, times what it was", 1.1, at_least=False)
            for kind, whose in _KINDS.items()
            for name, what in _HELD.items()
        ]

    def summary(self) -> str:
        head = (
            "", "requests", "answers", "polite refusals", "left early", "expired", "not sent", "errors", "answers in time/s", "p50 ms",
            "p99 ms", "refused p99 ms", "client late p99 ms",
        )  # fmt: skip
        return "\n\n".join([table(head, [self._row(case) for case in self.runs]), self._explained(), self._held_table()])

    def details(self) -> str:
        more = self.result.more
        minutes = ", ".join(figure(each) for each in more["minutes_p99_ms"])
        said = "\n".join(f"* {count:,} times: {text}" for text, count in list(more["said"].items())[:_MOST_SAID])
        return "\n\n".join(filter(None, [f"p99 of each {more['minute_s']:g} s, in ms: {minutes}.", said]))

    def _explained(self) -> str:
        figures, times = self.figures(), self.result.more["spike_times"]
        return (
            f"Callers who ask in turns are answered {figures['peak_per_s']:,.0f} requests a second; the spike brings {times:g} times the "
            f"steady traffic, and {figures['spike_goodput']:.0%} of what they are answered is answered in time then."
        )

    def _row(self, case: Case) -> tuple[str, ...]:
        run = self.median(case)
        counts = (run.requests, run.answers, run.refused, run.left, run.expired, run.unsent, run.errors)
        times = (run.in_time_per_s, run.p50_ms, run.p99_ms, run.refused_p99_ms, run.client_late_p99_ms)
        return case.part, *(f"{each:,.0f}" for each in counts), *map(figure, times)

    def _held_table(self) -> str:
        rows = [
            (_KINDS[kind], *(f"{figure(first[name])} / {figure(last[name])}" for name in _HELD))
            for kind, (first, last) in self.result.more["held"].items()
        ]
        return table(("after the first minutes / at the end", "memory MiB", "open descriptors", "threads"), rows)


def _neither(runs: Sequence[Run]) -> int:
    """Requests that were neither answered nor refused politely, though their callers waited."""
    return sum(each.errors + each.expired for each in runs)
