"""Merges the model statistics of several Tritons, in the form of Triton's HTTP answers (protobuf's JSON form
is equal).

Source: Triton's extension_statistics.md (server 24.10). Counts and nanoseconds are added up; of the times of
the last inference the latest counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from control_plane.core.algorithms.steps import Steps

Statistics = dict[str, Any]
"""Statistics of one version of one model; protobuf's JSON form writes 64-bit numbers as strings."""

_NAMES = frozenset(("name", "version", "type", "id", "batch_size"))
"""Fields that identify an item of a list; they are not added up."""

_DURATIONS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")

PER_STEP = 10
"""Entries (one for each version of a model on each server) per step: about 2 ms where each is converted from or to
protobuf, too."""


def merged_statistics_steps(parts: Iterable[Iterable[Statistics]]) -> Steps[list[Statistics]]:
    """Merge the statistics of several servers, in steps, in which lazy `parts` are made as well; sorted by model name and
    version."""
    merged: dict[tuple[Any, ...], Statistics] = {}
    for number, each in enumerate((each for part in parts for each in part), 1):
        identity = _identity(each)
        merged[identity] = _merged("", merged[identity], each) if identity in merged else each
        if number % PER_STEP == 0:
            yield
    return sorted(merged.values(), key=lambda each: (each["name"], each.get("version", "")))


def no_statistics(name: str, version: str) -> Statistics:
    """Statistics of all zeros, for a known model that no server has loaded."""
    return {
        "name": name,
        "version": version,
        "last_inference": 0,
        "inference_count": 0,
        "execution_count": 0,
        "inference_stats": {each: {"count": 0, "ns": 0} for each in _DURATIONS},
        "response_stats": {},
        "batch_stats": [],
        "memory_usage": [],
    }


def _merged(key: str, one: Any, other: Any) -> Any:
    """Merge two values of the field `key`: objects by field, lists by item identity, numbers by addition."""
    match one:
        case dict():
            shared = {name: _merged(name, one[name], other[name]) for name in one.keys() & other.keys()}
            return {**one, **other, **shared}
        case list():
            items: dict[tuple[Any, ...], Any] = {}
            for item in (*one, *other):
                identity = _identity(item)
                items[identity] = _merged("", items[identity], item) if identity in items else item
            return list(items.values())
    if key in _NAMES:
        return one
    return max(int(one), int(other)) if key == "last_inference" else int(one) + int(other)


def _identity(item: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(sorted((name, value) for name, value in item.items() if name in _NAMES))
