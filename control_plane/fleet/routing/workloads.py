"""What kind of request each one is, so that like ones meet on like servers: the pool that it goes to, and what it has in common with
others; asked by `fleet/routing/dispatch` for every request that goes to a fleet.

It is not sorted into pools where there are none.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol
from zlib import crc32

from control_plane.core.infer_call import InferCall
from control_plane.fleet.domain.fleet import Fleet
from control_plane.fleet.domain.workload import Workload, WorkloadLimits, classify, learned_threshold, pool_for

_BYTES_OF_A_NUMBER = 4
_NO_POOLS = frozenset({""})
_CLEARLY = 1.25
"""Times the learned threshold: it lies among the costs of a model whose requests all cost about the same, and would part them by chance."""


class Weighed(Protocol):
    """`inference/running_requests.RunningRequest`, as far as it tells what a request costs, who asks, and by which route."""

    @property
    def pool(self) -> str: ...

    @property
    def rows(self) -> int: ...

    @property
    def units(self) -> float | None: ...

    @property
    def priority(self) -> int: ...


@dataclass(slots=True)
class Aim:
    """Never changed, but not frozen: each request makes one."""

    pool: str | None = None
    """The servers that are for such requests, as `fleet/domain/routing` and `fleet/domain/placement` have it; None: all are."""
    likeness: int | None = None
    """Equal for requests that are alike, which had better go to the same server, for its caches' sake. None: they are like nothing else."""


ANY = Aim()


class Workloads:
    """Classifies the requests of one process for routing."""

    def __init__(self, fleet: Fleet, *, limits: WorkloadLimits | None = None, draw: Callable[[], float] = random.random) -> None:
        """`draw` is random, of [0, 1)."""
        self._fleet = fleet
        self._limits = limits or WorkloadLimits()
        self._salt = int(draw() * 2**32)
        """Gateways that do not see each other's requests must not all prefer the same server for the most usual length."""
        self._long_units: dict[str, float] = {}
        """By model, above what its requests are long, as learned."""

    def aim(self, call: InferCall, running: Weighed | None) -> Aim:
        """`running` tells what it costs and who asks; None: nobody knows."""
        return Aim(self._pool(call, running), self._likeness(call))

    def _pool(self, call: InferCall, running: Weighed | None) -> str | None:
        if self._fleet.pools.keys() <= _NO_POOLS:
            return None
        pools = self._fleet.open_pools()
        pool = (running is not None and running.pool) or pool_for(self._workload(call, running), pools)
        if pool in pools:
            return pool
        return "" if "" in pools else None

    def _workload(self, call: InferCall, running: Weighed | None) -> Workload:
        rows, units, priority = (1, None, 0) if running is None else (running.rows, running.units, running.priority)
        learned = self._long_units.get(call.model_name)
        found = classify(
            rows=rows,
            size_bytes=_size_bytes(call),
            cost_units=units,
            priority=priority,
            long_units=None if learned is None else _CLEARLY * learned,
            limits=self._limits,
        )
        if units is not None and call.model_name in self._fleet.models:
            self._long_units[call.model_name] = learned_threshold(self._limits.long_units if learned is None else learned, units)
        return found

    def _likeness(self, call: InferCall) -> int:
        """By its conversation, which all gateways send to the same server; else by its model and about how long it is."""
        if call.sequence_id:
            return crc32(call.sequence_id.encode())
        return crc32(call.model_name.encode(), self._salt + _size_bytes(call).bit_length())


def _size_bytes(call: InferCall) -> int:
    return call.text_bytes + _BYTES_OF_A_NUMBER * call.elements
