"""The report of `perf.nodes`: a request to a server with a node beside the same embedded twice, and nodes at rest.

Ratios are of one round, and their median over rounds is what counts. The node's is to the geometric mean of both embedded
ones: beside one alone it would carry how far that one is from the other. What those two differ by is the noise floor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from perf.measurement import report
from perf.measurement.markdown import figure, table
from perf.measurement.report import Target

EMBEDDED, NODE, ALIKE = "embedded", "on a node", "embedded, another alike"
AT_REST = "a node at rest"
_COMPARED = {"per_s": "throughput", "p50_ms": "p50", "cpu_us": "the gateway's CPU a request"}


@dataclass(frozen=True, slots=True)
class Case:
    where: str
    connections: int = 0
    """0 at rest."""
    models: int = 1


@dataclass(frozen=True, slots=True)
class Run:
    per_s: float = math.nan
    p50_ms: float = math.nan
    p99_ms: float = math.nan
    cpu_us: float = math.nan
    """The gateway's CPU for each request."""
    errors: int = 0
    core_percent: float = math.nan
    """CPU of the node's own process, in percent of one core."""
    mib: float = math.nan
    """The node's own process, shared pages in proportion."""
    ready_s: float = math.nan
    """From the start of the node until it is ready."""


class Report(report.Report):
    name, title, case, run = "nodes", "A server on a node beside the same embedded", Case, Run
    programs = ("wrk",)

    def figures(self) -> dict[str, float]:
        callers = sorted({case.connections for case in self.runs} - {0})
        found = {f"{what}_percent_{count}": median(self._node(what, count)) for count in callers for what in _COMPARED}
        found |= {f"{what}_noise_percent_{count}": median(self._noise(what, count)) for count in callers for what in _COMPARED}
        for case in self.runs:
            if case.where == AT_REST and (run := self.median(case)) is not None:
                found |= {
                    f"core_percent_{case.models}": run.core_percent,
                    f"mib_{case.models}": run.mib,
                    f"ready_s_{case.models}": run.ready_s,
                }
        found["errors"] = float(sum(run.errors for runs in self.runs.values() for run in runs))
        return {name: value for name, value in found.items() if not math.isnan(value)}

    def _node(self, what: str, connections: int) -> list[float]:
        """Return by how many percent a figure is larger on the node than the mean of both embedded ones, for each round."""
        return self._more_percent(what, connections, lambda one, other, node: node / math.sqrt(one * other))

    def _noise(self, what: str, connections: int) -> list[float]:
        """Return by how many percent a figure of the second embedded one is larger than the first one's, for each round."""
        return self._more_percent(what, connections, lambda one, other, node: other / one)

    def _more_percent(self, what: str, connections: int, ratio: Callable[[float, float, float], float]) -> list[float]:
        rounds = zip(*(self.runs[Case(where, connections)] for where in (EMBEDDED, ALIKE, NODE)), strict=True)
        return [100 * (ratio(*(getattr(run, what) for run in each)) - 1) for each in rounds]

    def targets(self) -> Sequence[Target]:
        callers = sorted({case.connections for case in self.runs} - {0})
        rest = sorted(case.models for case in self.runs if case.where == AT_REST)
        return (
            *(Target(f"per_s_percent_{count}", f"throughput of {count} callers on a node, % more", -3, at_least=True) for count in callers),
            *(Target(f"cpu_us_percent_{count}", f"the gateway's CPU a request of {count}, % more", 3, at_least=False) for count in callers),
            *(Target(f"p50_ms_percent_{count}", f"p50 of {count} callers, % more", 3, at_least=False) for count in callers),
            *(Target(f"core_percent_{count}", f"a node at rest with {count} models, % of a core", 1, at_least=False) for count in rest),
            *(Target(f"mib_{count}", f"a node at rest with {count} models, MiB", 80, at_least=False) for count in rest),
            Target("errors", "errors", 0, at_least=False),
        )

    def summary(self) -> str:
        asked, rested = [], []
        for case in self.runs:
            if (run := self.median(case)) is None:
                continue
            if case.where == AT_REST:
                rested.append((str(case.models), *map(figure, (run.core_percent, run.mib, run.ready_s))))
            else:
                asked.append((case.where, str(case.connections), *map(figure, (run.per_s, run.p50_ms, run.p99_ms, run.cpu_us, run.errors))))
        asking = table(("server", "callers", "a second", "p50 ms", "p99 ms", "the gateway's CPU us each", "errors"), asked)
        beside = self._beside()
        resting = table(("models on a node at rest", "% of a core", "MiB", "ready after s"), rested)
        return "\n\n".join(part for part in (asking, beside, resting if rested else "") if part)

    def _beside(self) -> str:
        """What the node costs beside both embedded ones, and what those differ by."""
        callers = sorted({case.connections for case in self.runs} - {0})
        rows = [
            (title, str(count), _spread(self._node(what, count)), _spread(self._noise(what, count)))
            for what, title in _COMPARED.items()
            for count in callers
        ]
        head = ("% more: median (quartiles) of rounds", "callers", "on a node than both embedded", "one embedded than the other: noise")
        return table(head, rows) if rows else ""


def _spread(more: Sequence[float]) -> str:
    low, middle, high = quantiles(more, n=4, method="inclusive") if len(more) > 1 else 3 * list(more)
    return f"{figure(middle)} ({figure(low)} to {figure(high)})"
