"""What `perf.tenants` measured: written as JSON and as a summary to read, held against the target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from perf.gateway_report import commit, machine
from perf.interleaved import median_of
from perf.markdown import figure, table
from perf.scenario_report import ScenarioReport

SHARE, FLOOD = "share", "flood"
MOVED_AT_MOST = 1.5
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
    """Of the loud tenant."""


@dataclass(frozen=True, slots=True)
class Run:
    quiet_p50_ms: float
    quiet_p99_ms: float
    quiet_per_s: float
    both_per_s: float
    errors: int


@dataclass(frozen=True)
class Report(ScenarioReport):
    name = "tenants"

    def markdown(self) -> str:
        """The summary."""
        hardware = machine()
        loads = self.arguments
        measured = (
            f"`{self.command()}`, commit {commit()}, {hardware['machine']}, {hardware['cpus']} CPUs that callers, gateway and Triton "
            f"share, no GPU used. The quiet tenant has {loads.callers} callers who ask again when they were answered, the loud one as many "
            f"and then {loads.flood} times as many; medians of {loads.rounds} interleaved rounds of {loads.duration_s:g} s. Wanted: the "
            f"quiet tenant's p99 moves by at most {MOVED_AT_MOST:g}x."
        )
        explained = "\n".join(f"* **{name}**: {MODELS[name].explained}." for name in self._models())
        return "\n\n".join(["# One tenant's flood beside another", measured, explained, *map(self._group, self._models())]) + "\n"

    def _models(self) -> list[str]:
        return list(dict.fromkeys(case.model for case in self.results))

    def _group(self, model: str) -> str:
        rows = [self._row(model, limit) for limit in dict.fromkeys(case.limit for case in self.results if case.model == model)]
        head = (
            "in flight at most",
            "p50 ms",
            "beside the flood",
            "p99 ms",
            "beside the flood",
            "moved",
            "",
            "its part",
            "requests/s",
            "beside the flood",
            "errors",
        )
        return f"## {model}\n\n" + table(head, rows)

    def _row(self, model: str, limit: int) -> tuple[str, ...]:
        share, flood = (median_of(self.results[Case(model, limit, load)]) for load in (SHARE, FLOOD))
        moved = flood.quiet_p99_ms / share.quiet_p99_ms
        return (
            str(limit),
            *map(figure, (share.quiet_p50_ms, flood.quiet_p50_ms, share.quiet_p99_ms, flood.quiet_p99_ms)),
            f"{moved:.2f}x",
            "met" if moved <= MOVED_AT_MOST else "**not met**",
            f"{flood.quiet_per_s / flood.both_per_s:.0%}",
            figure(share.both_per_s),
            figure(flood.both_per_s),
            f"{share.errors + flood.errors:.0f}",
        )
