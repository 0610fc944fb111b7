"""Compares ways of doing one thing in turns, A B C, C B A, A B C, ..., so that a machine whose speed drifts is fair to all."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

Key = TypeVar("Key")
Run = TypeVar("Run")


def interleave(ways: Mapping[Key, Callable[[], Run]], rounds: int) -> dict[Key, list[Run]]:
    """Run every way once a round, in turn forwards and backwards."""
    results: dict[Key, list[Run]] = {key: [] for key in ways}
    for number in range(rounds):
        for key in list(ways)[:: -1 if number % 2 else 1]:
            results[key].append(ways[key]())
    return results


def median_of(runs: list[Any]) -> Any:
    """The median of each figure by itself; `runs` are dataclasses of numbers."""
    figures = [asdict(run) for run in runs]
    return type(runs[0])(**{name: statistics.median(each[name] for each in figures) for name in figures[0]})
