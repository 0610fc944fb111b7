"""Requests for `perf.fleet`: the busiest stretch of a published trace, made as short as a run is to be; or drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

from control_plane.fleet.simulation.generators import drifting, poisson
from control_plane.fleet.simulation.workload import Request
from perf.simulate.traces import read_gentd26

_SEED = 20
_EXPONENT = 0.9
"""Exponent of the generator's Zipf law; the 16 most used models of GenTD26 have about it."""


def requests(trace: Path | None, models: Sequence[str], *, count: int, seconds: float) -> list[Request]:
    """Return so many requests in about so many seconds; their service times are not known yet, and 0."""
    if trace is None:
        random = Random(_SEED)
        return poisson(random, drifting(random, models, count, _EXPONENT), count / seconds, 0.0)
    return _of_trace(trace, models, count, seconds)


def _of_trace(trace: Path, models: Sequence[str], count: int, seconds: float) -> list[Request]:
    read = read_gentd26(trace)
    named = Random(_SEED).sample(list(models), len(models))  # or the most used would be the smallest
    ours = {theirs: own for (theirs, _), own in zip(Counter(read.models).most_common(), named, strict=False)}
    used = sorted((time_s, model) for time_s, model in zip(read.times_s, read.models, strict=True) if model in ours)
    first = busiest([time_s for time_s, _ in used], count)
    stretch = used[first : first + count]
    (began_s, _), (ended_s, _) = stretch[0], stretch[-1]
    faster = max(1.0, ended_s - began_s) / seconds
    return [Request((time_s - began_s) / faster, ours[model], 0.0) for time_s, model in stretch]


def busiest(times_s: Sequence[float], count: int) -> int:
    """Return where the stretch of so many requests begins that took the least time; 0 where there are no more."""
    return min(range(max(1, len(times_s) - count + 1)), key=lambda at: times_s[min(at + count, len(times_s)) - 1] - times_s[at])
