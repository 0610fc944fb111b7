"""Compares ways of doing one thing in turns, A B C A B C ..., so that a machine whose speed drifts is fair to all."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

Key = TypeVar("Key")
Run = TypeVar("Run")


def interleave(ways: Mapping[Key, Callable[[], Run]], rounds: int, *, warm_ups: int = 1) -> dict[Key, list[Run]]:
    """Run every way once a round, `rounds` times, after `warm_ups` rounds that do not count."""
    results: dict[Key, list[Run]] = {key: [] for key in ways}
    for number in range(warm_ups + rounds):
        for key, measure in ways.items():
            measured = measure()
            if number >= warm_ups:
                results[key].append(measured)
    return results


def median_of(runs: list[Any]) -> Any:
    """The median of each figure by itself; `runs` are dataclasses of numbers."""
    figures = [asdict(run) for run in runs]
    return type(runs[0])(**{name: statistics.median(each[name] for each in figures) for name in figures[0]})
