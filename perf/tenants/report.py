"""The report of `perf.tenants`: how much one tenant's flood moves another's p99, and what both together get."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from control_plane.settings.frontends import GatewaySettings
from perf.measurement import report
from perf.measurement.markdown import figure, table
from perf.measurement.report import Target

SHARE, FLOOD = "share", "flood"
SHIPPED_LIMIT: int = GatewaySettings().max_in_flight_per_shared_model
_MOVED_AT_MOST = 1.5
"""Times its own, the quiet tenant's p99 beside the flood."""


class Model(NamedTuple):
    model: str
    has_batches: bool
    explained: str


MODELS = {
    "one-by-one": Model("hold", False, "5 ms for each request, one at a time"),
    "batches": Model("work", True, "5 ms for each batch of up to 64, as on an accelerator with room; the more at once, the more a second"),
    "texts": Model("text_encoder", True, "embeddings of a text of 11 tokens, batched by length"),
}


@dataclass(frozen=True, slots=True)
class Case:
    model: str
    limit: int
    """TIDEGATE_MAX_IN_FLIGHT_PER_SHARED_MODEL."""
    load: str
    """Load of the loud tenant."""


@dataclass(frozen=True, slots=True)
class Run:
    quiet_p50_ms: float
    quiet_p99_ms: float
    quiet_per_s: float
    both_per_s: float
    errors: int


class Report(report.Report):
    name, title, case, run = "tenants", "One tenant's flood beside another", Case, Run

    def figures(self) -> dict[str, float]:
        moved = {f"{model}_moved": self._moved(model, SHIPPED_LIMIT) for model in self.names("model")}
        found = {name: value for name, value in moved.items() if not math.isnan(value)}
        return {**found, "worst_moved": max(found.values())} if found else {}

    def targets(self) -> Sequence[Target]:
        return [Target(f"{name}_moved", f"{name}: p99 beside the flood, times its own", _MOVED_AT_MOST, at_least=False) for name in MODELS]

    def summary(self) -> str:
        explained = "\n".join(f"* **{name}**: {MODELS[name].explained}." for name in self.names("model"))
        head = (
            "", "in flight at most", "p50 ms: alone / beside the flood", "p99 ms", "p99 moved", "its part of the flood",
            "requests/s of both", "errors",
        )  # fmt: skip
        rows = [self._row(case) for case in self.runs if case.load == SHARE]
        return f"{explained}\n\n{table(head, rows)}"

    def _row(self, case: Case) -> tuple[str, ...]:
        share, flood = (self.median(Case(case.model, case.limit, load)) for load in (SHARE, FLOOD))
        shipped = " (shipped)" if case.limit == SHIPPED_LIMIT else ""
        return (
            case.model,
            f"{case.limit}{shipped}",
            f"{figure(share.quiet_p50_ms)} / {figure(flood.quiet_p50_ms)}",
            f"{figure(share.quiet_p99_ms)} / {figure(flood.quiet_p99_ms)}",
            f"{self._moved(case.model, case.limit):.2f}x",
            f"{flood.quiet_per_s / flood.both_per_s:.0%}",
            f"{figure(share.both_per_s)} / {figure(flood.both_per_s)}",
            f"{share.errors + flood.errors:g}",
        )

    def _moved(self, model: str, limit: int) -> float:
        flood, share = (Case(model, limit, load) for load in (FLOOD, SHARE))
        return self.over_rounds(flood, share, lambda beside, alone: beside.quiet_p99_ms / alone.quiet_p99_ms)
