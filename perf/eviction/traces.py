"""Traces of requests for what might have been kept: out of files in the formats in which they are published."""

from __future__ import annotations

import csv
import gzip
import lzma
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import zstandard

VALUE_BYTES = 1600
"""An embedding of 384 FP32 with what is around it."""

MOST_REQUESTS = 300_000
"""Requests that are read of a trace: only the beginning of a longer file."""
_QUERIES = 50_000


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in their order. Keys are numbers from 0 on."""

    name: str
    source: str
    keys: list[int]
    costs_ms: list[float] | None = None
    """Cost of each key; None: all cost the same."""

    @property
    def distinct(self) -> int:
        return len(set(self.keys))

    def cost_ms(self, key: int) -> float:
        return 1.0 if self.costs_ms is None else self.costs_ms[key]

    def cost_ms_of_all(self) -> float:
        """The cost of all requests, as without a cache."""
        return sum(map(self.cost_ms, self.keys))


class _Format(NamedTuple):
    suffix: str
    read: Callable[[Path], Iterable[Hashable]]
    source: str


def from_file(path: Path) -> Trace | None:
    """None: not a trace, or in no format that is known here."""
    for each in _FORMATS:
        if path.name.endswith(each.suffix):
            keys = numbered(each.read(path))
            return Trace(path.name.split(".")[0], each.source, keys) if keys else None
    return None


def numbered(keys: Iterable[Hashable]) -> list[int]:
    """Numbers from 0 on in their place."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _cache2k(path: Path) -> list[int]:
    with lzma.open(path) as file:
        keys: list[int] = np.frombuffer(file.read(4 * MOST_REQUESTS), dtype=">u4").tolist()
    return keys


def _arc(path: Path) -> list[int]:
    """A line is a run of blocks: its first, how many, and what does not matter here."""
    keys: list[int] = []
    with zstandard.open(path, "rt") as lines:
        for line in lines:
            first, count, *_ = map(int, line.split())
            keys.extend(range(first, first + count))
            if len(keys) >= MOST_REQUESTS:
                break
    return keys[:MOST_REQUESTS]


def _bing(path: Path) -> list[str]:
    """A day's queries are drawn by their popularity that day, as many for each line of it."""
    days: dict[str, list[tuple[str, float]]] = defaultdict(list)
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t")
        if not {"Date", "Query", "PopularityScore"} <= set(rows.fieldnames or ()):
            return []
        for row in rows:
            days[row["Date"]].append((row["Query"], float(row["PopularityScore"])))
    random = np.random.default_rng(0)
    lines = sum(map(len, days.values()))
    queries: list[str] = []
    for _, day in sorted(days.items()):
        weights = np.array([popularity for _, popularity in day])
        drawn = random.choice(len(day), round(_QUERIES * len(day) / lines), p=weights / weights.sum())
        queries += [day[number][0] for number in drawn]
    return queries


_WHAT_WAS_ASKED = (
    "checkpoint_model_version_id",
    "predict_type",
    "prompt_length",
    "negative_prompt_length",
    "num_images_per_prompt",
    "num_inference_steps",
)


def _gentd26(path: Path) -> list[tuple[str, ...]]:
    """There are no prompts in it: requests of one model that are alike in all that is told are taken for repeats."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        if not set(_WHAT_WAS_ASKED) <= set(rows.fieldnames or ()):
            return []
        return [tuple(row[name] for name in _WHAT_WAS_ASKED) for row in rows]


_FORMATS = (
    _Format(".trace.xz", _cache2k, "cache2k benchmark traces (as published with them)"),
    _Format(".lis.zst", _arc, "ARC traces, Megiddo and Modha (research use)"),
    _Format(".tsv.gz", _bing, "Bing search dataset for Coronavirus intent (O-UDA 1.0), drawn by popularity"),
    _Format(".csv.gz", _gentd26, "Alibaba cluster-trace-v2026-GenAI (research and study use)"),
)
