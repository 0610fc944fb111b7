"""What `perf.gateway` measured: written as JSON, printed as a table, held against the targets."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from perf.interleaved import median_of
from perf.processes import PROJECT


@dataclass(frozen=True, slots=True)
class Case:
    door: str
    tensor_bytes: int
    connections: int
    peer: str


@dataclass(frozen=True, slots=True)
class Run:
    """One peer under one load."""

    requests_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    """Of the peer's processes, per request."""
    errors: int


Results = Mapping[Case, list[Run]]


@dataclass(frozen=True, slots=True)
class Target:
    """One line of the targets: Tidegate's figure against a peer's."""

    what: str
    peer: str
    limit: float
    at_least: bool


TARGETS = {
    "http": (
        Target("throughput", "nginx", 0.6, at_least=True),
        Target("added p50", "nginx", 1.5, at_least=False),
        Target("throughput", "starlette-aiohttp", 5.0, at_least=True),
    ),
    "grpc": (
        Target("added p50 us", "straight", 150.0, at_least=False),
        Target("added p50", "grpc-aio", 1 / 3, at_least=False),
    ),
}


def write(results: Results, arguments: argparse.Namespace) -> None:
    rows = [{**_fields(case), "median": asdict(median_of(runs)), "rounds": [asdict(run) for run in runs]} for case, runs in results.items()]
    document = {"scenario": "gateway", "commit": commit(), "machine": machine(), **vars(arguments), "cases": rows}
    path = PROJECT / "perf" / "results" / f"gateway-{arguments.upstream}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


def machine() -> dict[str, object]:
    return {"cpus": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}


def print_table(results: Results, arguments: argparse.Namespace) -> None:
    table = Table("door", "tensor", "connections", "peer", "requests/s", "p50 ms", "p99 ms", "p50 added us", "CPU us/request", box=None)
    for column in table.columns[4:]:
        column.justify = "right"
    for case, runs in results.items():
        run, is_straight = median_of(runs), case.peer == "straight"
        added = "" if is_straight else f"{added_p50_us(results, case):+.0f}"
        figures = (f"{run.requests_per_s:.0f}", f"{run.p50_ms:.3f}", f"{run.p99_ms:.3f}", added, "" if is_straight else f"{run.cpu_us:.0f}")
        table.add_row(
            case.door, size_of(case.tensor_bytes), str(case.connections), case.peer, *figures, end_section=_is_last(case, results)
        )
    console = Console(width=120)
    console.print(table)
    console.print(
        f"Medians of {arguments.rounds} interleaved rounds, upstream: {arguments.upstream}. Load generator, peer and upstream share "
        f"{os.cpu_count()} CPUs: with all of them busy throughput and added p50 include waiting for a core, CPU per request does not."
    )
    failed = {case: errors for case, runs in results.items() if (errors := sum(run.errors for run in runs))}
    for case, errors in failed.items():
        console.print(f"[red]{errors} failed requests[/]: {case}")


def print_targets(results: Results) -> None:
    table = Table("target", "door", "tensor", "connections", "measured", "wanted", "", box=None, title="Targets", title_justify="left")
    for case in results:
        if case.peer != "tidegate":
            continue
        for target in TARGETS[case.door]:
            measured = _measured(results, case, target)
            if measured is None:
                continue
            is_met = measured >= target.limit if target.at_least else measured <= target.limit
            name = target.what if target.peer == "straight" else f"{target.what} / {target.peer}'s"
            row = (f"{measured:.2f}", f"{'>=' if target.at_least else '<='} {target.limit:.2f}", "[green]met" if is_met else "[red]not met")
            table.add_row(name, case.door, size_of(case.tensor_bytes), str(case.connections), *row)
    if table.rows:
        Console(width=120).print(table)


def added_p50_us(results: Results, case: Case) -> float:
    """The median over the rounds of what a peer added to the same round's straight p50."""
    straight = results[_other(case, "straight")]
    return 1e3 * float(median_of([_P50(run.p50_ms - base.p50_ms) for run, base in zip(results[case], straight, strict=True)]).p50_ms)


def size_of(tensor_bytes: int) -> str:
    return f"{tensor_bytes / 2**20:g} MB" if tensor_bytes >= 2**20 else f"{tensor_bytes / 2**10:g} KB"


@dataclass(frozen=True, slots=True)
class _P50:
    p50_ms: float


def _measured(results: Results, case: Case, target: Target) -> float | None:
    """None when the peer was not measured, or seemed to add nothing: its straight run was disturbed then, and a ratio is none."""
    other = _other(case, target.peer)
    if other not in results:
        return None
    if target.what == "throughput":
        return float(median_of(results[case]).requests_per_s / median_of(results[other]).requests_per_s)
    added_us = added_p50_us(results, case)
    if target.peer == "straight":
        return added_us
    others_us = added_p50_us(results, other)
    return added_us / others_us if others_us > 0 else None


def _other(case: Case, peer: str) -> Case:
    return type(case)(**{**_fields(case), "peer": peer})


def _fields(case: Case) -> dict[str, object]:
    return asdict(case)


def _is_last(case: Case, results: Results) -> bool:
    """Of its door, size and connections."""
    alike = [
        other
        for other in results
        if (other.door, other.tensor_bytes, other.connections) == (case.door, case.tensor_bytes, case.connections)
    ]
    return alike[-1] == case


def commit() -> str:
    """What was measured."""
    done = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=PROJECT, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"
