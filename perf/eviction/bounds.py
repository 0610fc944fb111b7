"""What no policy can surpass, since it knows the future."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

import numpy as np

from perf.eviction.traces import Trace


def most_hits(keys: list[int], entries: int) -> int:
    """MIN (Belady 1966) for entries of one size, which need not keep what was asked for last: exact."""
    next_use = _next_uses(keys).tolist()
    kept: dict[int, int] = {}
    furthest: list[tuple[int, int]] = []
    hits = 0
    for key, following in zip(keys, next_use, strict=True):
        hits += key in kept
        if following == len(keys):
            kept.pop(key, None)
            continue
        kept[key] = following
        heappush(furthest, (-following, key))
        while len(kept) > entries:
            when, victim = heappop(furthest)
            if kept.get(victim) == -when:
                del kept[victim]
    return hits


def most_saved_ms(trace: Trace, entries: int) -> float:
    """An upper bound (PFOO-L, Berger, Beckmann and Harchol-Balter 2018) for entries of one size.

    What lies between two uses of a key takes that much time of an entry and saves its cost. The best of these are taken until
    they fill the entries times the time, as if they could lie anywhere.
    """
    times = _next_uses(trace.keys) - np.arange(len(trace.keys))
    is_again = np.arange(len(trace.keys)) + times < len(trace.keys)
    times = times[is_again]
    costs = np.array([trace.cost_ms(key) for key in trace.keys])[is_again]
    order = np.argsort(-costs / times, kind="stable")
    filled_before = np.cumsum(times[order]) - times[order]
    return float(costs[order][filled_before < entries * len(trace.keys)].sum())


def _next_uses(keys: list[int]) -> Any:
    """Return for each request when its key is asked for again; the number of requests: never."""
    uses = np.empty(len(keys), dtype=np.int64)
    following: dict[int, int] = {}
    for at in range(len(keys) - 1, -1, -1):
        uses[at] = following.get(keys[at], len(keys))
        following[keys[at]] = at
    return uses
