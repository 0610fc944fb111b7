"""The report of `perf.cache_hits`: how many hits a second, and what each costs, beside nginx."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perf.measurement import report
from perf.measurement.markdown import figure, table
from perf.measurement.report import Target
from perf.measurement.runs import GeneratedRun

NGINX = "nginx"
TRACED = "-traced"
"""Ends the names of peers whose callers give each request a trace context and an id of its own."""
_AT_LEAST = 0.7
"""Promised part of nginx's throughput."""


@dataclass(frozen=True, slots=True)
class Case:
    protocol: str
    connections: int
    peer: str


class Report(report.Report):
    name, title, case, run = "cache-hits", "What an answer from the cache costs", Case, GeneratedRun
    programs = ("wrk", "nginx", "h2load")

    def figures(self) -> dict[str, float]:
        ours = [case for case in self.runs if not _is_nginx(case)]
        shares = {_key(case, "of_nginx"): self._of_nginx(case) for case in ours}
        return shares | {_key(case, "cpu_us"): self.median(case).cpu_us for case in ours}

    def targets(self) -> Sequence[Target]:
        return [
            Target(_key(case, "of_nginx"), f"{_told(case)}: throughput / nginx's", _AT_LEAST, at_least=True)
            for case in self.runs
            if not _is_nginx(case)
        ]

    def summary(self) -> str:
        head = ("", "connections", "peer", "requests/s", "of nginx's", "p50 ms", "p99 ms", "CPU us per request", "errors")
        return table(head, [self._row(case) for case in self.runs])

    def _row(self, case: Case) -> tuple[str, ...]:
        run = self.median(case)
        figures = (run.requests_per_s, self._of_nginx(case), run.p50_ms, run.p99_ms, run.cpu_us)
        return case.protocol, str(case.connections), case.peer, *map(figure, figures), f"{run.errors:g}"

    def _of_nginx(self, case: Case) -> float:
        nginx = NGINX + TRACED if case.peer.endswith(TRACED) else NGINX
        return self.over_rounds(case, replace(case, peer=nginx), lambda own, other: own.requests_per_s / other.requests_per_s)


def _is_nginx(case: Case) -> bool:
    return case.peer.startswith(NGINX)


def _key(case: Case, what: str) -> str:
    return f"{case.protocol}_{case.connections}_{case.peer}_{what}"


def _told(case: Case) -> str:
    return f"{case.peer}, {case.protocol}, {case.connections} connection{'s' * (case.connections > 1)}"
