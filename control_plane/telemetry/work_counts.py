"""Counts of what computed answers were expected to cost, and how long they took for it: by model, and by size where a model
has requests of very different sizes, whose percentiles would mean nothing together.

Values that workers send to their parent (`telemetry/request_counts`). A compute unit is a millisecond of one instance.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import add

UNIT_BUCKETS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 4096.0)
"""Upper bounds of the histogram of compute units; one more bucket holds the rest."""

PACE_BUCKETS_S = (0.0005, 0.001, 0.0015, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.25, 1.0)
"""Upper bounds of the histogram of seconds for each unit, of which an instance of its own takes 0.001."""

SIZES = ("1", "8", "64", "512", "more")
"""Classes of sizes, by the most units of each: an eightfold step, so that most models have one or two."""

SIZE_OF_BUCKET = tuple(sum(bound > most for most in (1.0, 8.0, 64.0, 512.0)) for bound in (*UNIT_BUCKETS, float("inf")))
"""Class of each bucket of `UNIT_BUCKETS`."""


@dataclass(frozen=True, slots=True)
class SizeDurations:
    """Histogram of the durations of a model's answers of one size, with the buckets of `request_counts.BUCKETS_S`."""

    size: str
    buckets: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class WorkCounts:
    """Histograms of a model's computed answers: counts by bucket (not cumulative), and sums."""

    model: str
    unit_buckets: tuple[int, ...]
    units: float
    pace_buckets: tuple[int, ...]
    paces_s: float
    sizes: tuple[SizeDurations, ...]
    """Durations by class of size, of the classes that the answers were in."""


def total_work(parts: Iterable[WorkCounts]) -> tuple[WorkCounts, ...]:
    """Sum the counts of several processes by model."""
    sums: dict[str, WorkCounts] = {}
    for part in parts:
        sums[part.model] = part if (so_far := sums.get(part.model)) is None else _added(so_far, part)
    return tuple(sums.values())


def _added(one: WorkCounts, other: WorkCounts) -> WorkCounts:
    sizes = {each.size: each for each in one.sizes}
    for each in other.sizes:
        if (known := sizes.get(each.size)) is not None:
            each = SizeDurations(each.size, tuple(map(add, known.buckets, each.buckets)), known.seconds + each.seconds)
        sizes[each.size] = each
    return WorkCounts(
        one.model,
        tuple(map(add, one.unit_buckets, other.unit_buckets)),
        one.units + other.units,
        tuple(map(add, one.pace_buckets, other.pace_buckets)),
        one.paces_s + other.paces_s,
        tuple(sizes.values()),
    )
