"""What no policy can surpass, since it knows the future and has the memory of all servers in one piece."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from control_plane.fleet.simulation.workload import Workload
from perf.eviction.bounds import most_hits
from perf.eviction.traces import numbered


def fewest_loads(workload: Workload, memory_bytes: int) -> int:
    """Return the fewest loads of models in a memory of that size, requests served one after the other.

    Where all are of one size it is MIN, which need not keep what it has served: exact. Else it is PFOO-L for sizes, which fills
    memory times time with the cheapest of what lies between two uses of a model: no more loads than the best possible needs.
    """
    models = [request.model for request in workload.requests]
    sizes = {name: cost.resident_bytes for name, cost in workload.models.items()}
    if len(set(sizes.values())) == 1:
        return len(models) - most_hits(numbered(models), memory_bytes // next(iter(sizes.values())))
    return len(models) - _most_hits_by_size(models, sizes, memory_bytes)


def _most_hits_by_size(models: Sequence[str], sizes: Mapping[str, int], memory_bytes: int) -> int:
    last_use: dict[str, int] = {}
    taken = []
    for at, model in enumerate(models):
        if model in last_use:
            taken.append((at - last_use[model]) * sizes[model])
        last_use[model] = at
    filled_before = np.concatenate([[0.0], np.cumsum(np.sort(np.array(taken, dtype=np.float64)))[:-1]])
    return int((filled_before[: len(taken)] < float(memory_bytes) * len(models)).sum())
