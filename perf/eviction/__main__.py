"""Which answers to keep: the gateway's policy beside others and the clairvoyant bound, over traces. Nothing is served.

    python -m perf.eviction [--traces FOLDER] [--trace FILE ...] [--requests 150000] [--sizes 1 5 10 20] [--policies ...]

Without files the traces are this project's own (`eviction_generators`). Files: cache2k's `.trace.xz`, ARC's `.lis.zst`, Bing's query
popularity `.tsv.gz`, GenTD26's requests `.csv.gz`; others are passed over. Writes perf/results/eviction.json, .md and .png.
"""

from __future__ import annotations

import argparse
import os
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from control_plane.cache.domain.eviction import ENTRY_BYTES
from perf.eviction import plot as eviction_plot
from perf.eviction.bounds import most_hits, most_saved_ms
from perf.eviction.generators import generated
from perf.eviction.report import BOUND, Case, Report, Run
from perf.eviction.traces import VALUE_BYTES, Trace, from_file
from perf.measurement import harness
from perf.measurement.report import Result
from perf.policies import POLICIES


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--traces", type=Path, help="a folder of trace files")
    parser.add_argument("--trace", type=Path, nargs="+", default=[], help="trace files")
    parser.add_argument("--requests", type=int, default=150_000, help="of each trace of our own")
    parser.add_argument("--sizes", type=float, nargs="+", default=[1, 5, 10, 20], help="in percent of the distinct keys")
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    harness.carry_out(Report, parser.parse_args(), _measure, eviction_plot.draw)


def _measure(arguments: argparse.Namespace) -> Result:
    traces = [*_from_files(arguments), *generated(arguments.requests)]
    cases = [Case(trace.name, size, policy) for trace in traces for size in arguments.sizes for policy in (BOUND, *arguments.policies)]
    by_name = {trace.name: trace for trace in traces}
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as processes:
        runs = processes.map(simulate, (by_name[case.trace] for case in cases), cases)
        results = {case: [run] for case, run in zip(cases, runs, strict=True)}
    return Result(results, [f"**{trace.name}**: {trace.source}" for trace in traces])


def _from_files(arguments: argparse.Namespace) -> list[Trace]:
    paths = [*arguments.trace, *(sorted(arguments.traces.iterdir()) if arguments.traces else [])]
    traces = {path: from_file(path) for path in paths}
    for path in arguments.trace:
        if traces[path] is None:
            raise SystemExit(f"{path} is no trace in a format that is known here: see --help")
    return [trace for trace in traces.values() if trace is not None]


def simulate(trace: Trace, case: Case) -> Run:
    """Every request once, in order, with room for as many entries as the case says."""
    entries = max(1, int(trace.distinct * case.size_percent / 100))
    if case.policy == BOUND:
        return _bound(trace, entries)
    size = VALUE_BYTES + ENTRY_BYTES
    policy = POLICIES[case.policy](entries * size, entries)
    costs_ms = [trace.cost_ms(key) for key in range(max(trace.keys) + 1)]
    hits, saved_ms, began_s = 0, 0.0, time.perf_counter()
    for key in trace.keys:
        if policy.use(key, size, costs_ms[key]):
            hits += 1
            saved_ms += costs_ms[key]
    each_us = 1e6 * (time.perf_counter() - began_s) / len(trace.keys)
    return Run(hits / len(trace.keys), saved_ms, saved_ms / trace.cost_ms_of_all(), each_us)


def _bound(trace: Trace, entries: int) -> Run:
    hits = most_hits(trace.keys, entries)
    saved_ms = float(hits) if trace.costs_ms is None else most_saved_ms(trace, entries)
    return Run(hits / len(trace.keys), saved_ms, saved_ms / trace.cost_ms_of_all(), 0.0)


if __name__ == "__main__":
    main()
