"""The report of `perf.waiting`: what others feel before and while requests wait, and without and with large uploads beside them.

Uploads as fast as loopback goes take all cores of a machine that client, proxy and Triton share: beside them a small request's p99 moves
through any proxy, and straight at Triton, so how far it moves through nginx stands beside what is wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perf.measurement import report
from perf.measurement.markdown import figure, table
from perf.measurement.report import Target

STRAIGHT, NGINX, GATEWAY = "at Triton", "through nginx", "through the gateway"
FAILED, THREADS, MEMORY, UPLOAD_MEMORY = "waiting: failed requests", "waiting: threads", "waiting: memory, MiB", "uploads: memory, MiB"
_HEALTH_P99_MS = 20.0
_SMALL_P99_RATIO = 2.0


@dataclass(frozen=True, slots=True)
class Case:
    protocol: str
    what: str


@dataclass(frozen=True, slots=True)
class Run:
    before: float
    during: float


def waiting_p99(asked: str) -> str:
    return f"waiting: {asked} p99, ms"


def upload_p99(way: str) -> str:
    return f"uploads: small p99 {way}, ms"


class Report(report.Report):
    name, title, case, run = "waiting", "What waiting requests and large uploads cost everybody else", Case, Run
    programs = ("nginx",)

    def figures(self) -> dict[str, float]:
        return {name: value for protocol in self.names("protocol") for name, value in self._figures_of(protocol).items()}

    def targets(self) -> Sequence[Target]:
        return [
            target
            for protocol in self.names("protocol")
            for target in (
                Target(f"{protocol}_failed", f"{protocol}: waiting requests that failed", 0, at_least=False),
                Target(f"{protocol}_more_threads", f"{protocol}: more threads while they wait", 0, at_least=False),
                Target(f"{protocol}_live_p99_ms", f"{protocol}: live p99 while they wait, ms", _HEALTH_P99_MS, at_least=False),
                Target(f"{protocol}_ready_p99_ms", f"{protocol}: ready p99 while they wait, ms", _HEALTH_P99_MS, at_least=False),
                Target(
                    f"{protocol}_upload_p99_times", f"{protocol}: small p99 beside uploads, times its own", _SMALL_P99_RATIO, at_least=False
                ),
                Target(
                    f"{protocol}_upload_beyond_floor",
                    f"{protocol}: how far uploads move it, times how far they do through nginx",
                    1.0,
                    at_least=False,
                ),
            )
        ]

    def summary(self) -> str:
        protocols = self.names("protocol")
        rows = [(what, *(self._cell(Case(protocol, what)) for protocol in protocols)) for what in self.names("what")]
        return table(("", *(f"{protocol}: before / during" for protocol in protocols)), rows)

    def _cell(self, case: Case) -> str:
        run = self.median(case)
        return f"{figure(run.before)} / {figure(run.during)}"

    def _figures_of(self, protocol: str) -> dict[str, float]:
        failed, threads, live, ready = (
            self.median(Case(protocol, what)) for what in (FAILED, THREADS, waiting_p99("live"), waiting_p99("ready"))
        )
        moved, floor = self._moved(protocol, GATEWAY), max(1.0, self._moved(protocol, NGINX))
        return {
            f"{protocol}_failed": failed.during,
            f"{protocol}_more_threads": threads.during - threads.before,
            f"{protocol}_live_p99_ms": live.during,
            f"{protocol}_ready_p99_ms": ready.during,
            f"{protocol}_upload_p99_times": moved,
            f"{protocol}_upload_floor": floor,
            f"{protocol}_upload_beyond_floor": moved / floor,
        }

    def _moved(self, protocol: str, way: str) -> float:
        """How many times as long the p99 of small requests is beside uploads, on this way to Triton."""
        small = self.median(Case(protocol, upload_p99(way)))
        return small.during / small.before
