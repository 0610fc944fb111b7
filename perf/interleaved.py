"""Compares ways of doing one thing in turns, A B C A B C ..., so that a machine whose speed drifts is fair to all."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import TypeVar

from perf.perf_analyzer import Measured

Key = TypeVar("Key")


def interleave(ways: Mapping[Key, Callable[[], Measured]], rounds: int) -> dict[Key, list[Measured]]:
    """Run every way once a round, `rounds` times, after one round that does not count."""
    results: dict[Key, list[Measured]] = {key: [] for key in ways}
    for number in range(rounds + 1):
        for key, measure in ways.items():
            measured = measure()
            if number > 0:
                results[key].append(measured)
    return results


def median_of(runs: list[Measured]) -> Measured:
    """The median of each figure by itself."""
    return Measured(
        p50_ms=statistics.median(run.p50_ms for run in runs),
        p99_ms=statistics.median(run.p99_ms for run in runs),
        throughput=statistics.median(run.throughput for run in runs),
    )
