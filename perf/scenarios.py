"""Every scenario there is, in the order in which `make perf` runs them.

A new one is a package `perf/NAME` whose `__main__` calls `perf.measurement.harness.carry_out`, a `Report` beside it, a line
here, a run of a few seconds in one of `tests/e2e/perf/test_perf*.py`, and a section with its block in perf/README.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from perf.batching import report as batching_report
from perf.budgets import report as budgets_report
from perf.cache_faults import report as cache_faults_report
from perf.cache_hits import report as cache_hits_report
from perf.chaos import report as chaos_report
from perf.chaos_jobs import report as chaos_jobs_report
from perf.embedding import report as embedding_report
from perf.eviction import report as eviction_report
from perf.fleet import report as fleet_report
from perf.floods import report as floods_report
from perf.gateway import report as gateway_report
from perf.generation import report as generation_report
from perf.gpu import report as gpu_report
from perf.hedging import report as hedging_report
from perf.jobs import report as jobs_report
from perf.long_documents import report as long_documents_report
from perf.measurement.report import Report
from perf.nodes import report as nodes_report
from perf.prefetch import report as prefetch_report
from perf.processes import report as processes_report
from perf.repeats import report as repeats_report
from perf.rollout_gates import report as rollout_gates_report
from perf.rollouts import report as rollouts_report
from perf.simulate import report as simulate_report
from perf.smoke import report as smoke_report
from perf.soak import report as soak_report
from perf.streaming import report as streaming_report
from perf.streaming_gpu import report as streaming_gpu_report
from perf.tenants import report as tenants_report
from perf.waiting import report as waiting_report


@dataclass(frozen=True, slots=True)
class Scenario:
    """Scenario, which `make perf-NAME` measures."""

    told: str
    report: type[Report]
    traces: Mapping[str, str] = field(default_factory=dict)
    """The scenario's options that take a file of a published trace, with the name that such a file has in the folder of `--data`."""
    trace_folder: str = ""
    """The scenario's option that takes the folder of traces itself."""
    has_rounds: bool = True
    needs_gpu: bool = False

    @property
    def name(self) -> str:
        return self.report.name

    @property
    def module(self) -> str:
        return self.report.module()

    def flags(self, data: Path | None, rounds: int | None = None) -> list[str]:
        """Return the command's flags for those traces that the folder has, and for so many rounds."""
        few = ["--rounds", str(rounds)] if rounds and self.has_rounds else []
        return [*few, *self._trace_flags(data)]

    def _trace_flags(self, data: Path | None) -> list[str]:
        if data is None:
            return []
        found = {option: sorted(data.glob(pattern)) for option, pattern in self.traces.items()}
        files = [part for option, paths in found.items() if paths for part in (option, str(paths[0]))]
        return [*files, self.trace_folder, str(data)] if self.trace_folder else files


_REQUESTS = "gentd26_requests*.csv.gz"

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("what the gateway's hop costs, by perf_analyzer", smoke_report.Report),
        Scenario("a hop beside nginx's and Python proxies'", gateway_report.Report),
        Scenario("what worker processes and CPUs of their own gain", processes_report.Report),
        Scenario("what 2,000 waiting requests and large uploads cost everybody else", waiting_report.Report),
        Scenario("what one client that floods costs everybody else", floods_report.Report),
        Scenario("what a tenant that floods a model costs another", tenants_report.Report),
        Scenario("a long time of steady traffic, and ten times as much in its middle", soak_report.Report, has_rounds=False),
        Scenario("embedding texts beside what people first write", embedding_report.Report),
        Scenario("embedding texts on a GPU", gpu_report.Report, needs_gpu=True),
        Scenario("generated text: answers that share steps, beside one after the other", generation_report.Report),
        Scenario("a model with a part of its weights in memory", streaming_report.Report),
        Scenario("a language model with a part of its weights on its GPU", streaming_gpu_report.Report, needs_gpu=True),
        Scenario("documents of many pages beside a plain server, part by part", long_documents_report.Report),
        Scenario("length-aware batching beside other ways of batching", batching_report.Report),
        Scenario("what an answer from the cache costs", cache_hits_report.Report),
        Scenario("what the cache does for texts that repeat", repeats_report.Report),
        Scenario("what callers feel of a second level of the cache that fails", cache_faults_report.Report),
        Scenario("more models than memory on three Tritons", fleet_report.Report, traces={"--trace": _REQUESTS}),
        Scenario("a server on a node beside the same embedded", nodes_report.Report),
        Scenario("what callers see while something dies, freezes, is slow, full, or lies", chaos_report.Report),
        Scenario("whether each accepted job is answered once, whatever dies", chaos_jobs_report.Report, has_rounds=False),
        Scenario("what asynchronous jobs cost callers who wait, and what they get", jobs_report.Report),
        Scenario("late requests that go to a second server", hedging_report.Report),
        Scenario("a fast model that stands in where an accurate one would be late", budgets_report.Report),
        Scenario("which answers to keep, on traces", eviction_report.Report, trace_folder="--traces", has_rounds=False),
        Scenario(
            "which server and what has to go, on traces",
            simulate_report.Report,
            traces={"--trace": _REQUESTS, "--load-times": "gentd26_basemodel_load_ms*.csv.gz"},
            has_rounds=False,
        ),
        Scenario("rollouts in a row under load, and versions that are bad in all ways", rollouts_report.Report),
        Scenario("when a canary is rolled back, simulated", rollout_gates_report.Report, has_rounds=False),
        Scenario("loading models ahead of demand, on traces", prefetch_report.Report, traces={"--trace": _REQUESTS}, has_rounds=False),
    )
}
