"""Routing hints: the server pool of each request, and the affinity key by which similar requests go to the same replica.

`fleet/routing/dispatch` asks for every request that goes to a fleet. Requests are classified only where there are pools.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol
from zlib import crc32

from control_plane.core.infer_call import InferCall
from control_plane.fleet.domain.fleet import Fleet
from control_plane.fleet.domain.routing.workload import WorkloadClass, WorkloadLimits, classify, learned_threshold, pool_for
from control_plane.inference.retries.faults import Fault

_BYTES_OF_A_NUMBER = 4
"""Assumed bytes of a tensor's element, as of FP32 and INT32."""
_NO_POOLS = frozenset({""})
_CLEARLY = 1.25
"""Factor over the learned threshold from which a request is long. Without it the threshold would lie among
the costs of a model whose requests all cost about the same, and part them by chance."""


class RoutedRequest(Protocol):
    """Request in flight, as it tells of itself (`inference/in_flight/running_request.AuthorizedRequest`): its cost, its
    tenant's priority, its route's pool."""

    @property
    def pool(self) -> str: ...

    @property
    def rows(self) -> int: ...

    @property
    def units(self) -> float | None: ...

    @property
    def priority(self) -> int: ...


@dataclass(slots=True)
class RoutingHint:
    """Routing hint of one request. It is never changed, but not frozen: each request makes one, and frozen
    classes are slower to make."""

    pool: str | None = None
    """The server pool, as `fleet/domain/routing` and `fleet/domain/placement` use it; None if any server will
    do."""
    affinity_key: int | None = None
    """Affinity key: requests with the same key had better go to the same server, for its caches' sake. None:
    no affinity."""
    avoid: frozenset[str] = frozenset()
    """Servers that have failed this request, so that others are preferred."""
    resent: tuple[Fault, ...] = ()
    """The faults that it was sent again for."""
    may_probe: bool = False
    """Whether the request may be sent to a replica in doubt, as it could be sent again."""


ANY = RoutingHint()


class RequestClassifier:
    """Classifier of one process's requests for routing; it learns for each model above which cost a request
    is long."""

    def __init__(self, fleet: Fleet, *, limits: WorkloadLimits | None = None, draw: Callable[[], float] = random.random) -> None:
        """`draw` returns random numbers of [0, 1)."""
        self._fleet = fleet
        self._limits = limits or WorkloadLimits()
        self._salt = int(draw() * 2**32)
        """Makes gateways differ: not all of them should prefer the same server for the most usual length."""
        self._long_units: dict[str, float] = {}
        """Model -> learned threshold of cost, in compute units."""

    def hint(self, call: InferCall, running: RoutedRequest | None) -> RoutingHint:
        """Return the routing hint of a request; `running` tells its cost and priority, None if nobody
        knows."""
        return RoutingHint(self._pool(call, running), self._affinity_key(call))

    def _pool(self, call: InferCall, running: RoutedRequest | None) -> str | None:
        """The request's pool: that of its route, else by its class; None if there are no pools, or none that
        would do."""
        # Without pools there is nothing to classify.
        if self._fleet.pools.keys() <= _NO_POOLS:
            return None
        pools = self._fleet.open_pools()
        pool = (running is not None and running.pool) or pool_for(self._workload(call, running), pools)
        if pool in pools:
            return pool
        # Servers without a pool take what no other pool is for.
        return "" if "" in pools else None

    def _workload(self, call: InferCall, running: RoutedRequest | None) -> WorkloadClass:
        """Classify a request, and learn from its cost where the model's threshold lies."""
        rows, units, priority = (1, None, 0) if running is None else (running.rows, running.units, running.priority)
        learned = self._long_units.get(call.model_name)
        found = classify(
            rows=rows,
            size_bytes=_size_bytes(call),
            cost_units=units,
            priority=priority,
            # Learned by model: a request is short or long beside others of its model.
            long_units=None if learned is None else _CLEARLY * learned,
            limits=self._limits,
        )
        if units is not None and call.model_name in self._fleet.models:
            self._long_units[call.model_name] = learned_threshold(self._limits.long_units if learned is None else learned, units)
        return found

    def _affinity_key(self, call: InferCall) -> int:
        """Affinity key: the sequence, which all gateways send to the same server; otherwise model and
        approximate length (a power of two)."""
        if call.sequence_id:
            return crc32(call.sequence_id.encode())
        return crc32(call.model_name.encode(), self._salt + _size_bytes(call).bit_length())


def _size_bytes(call: InferCall) -> int:
    return call.text_bytes + _BYTES_OF_A_NUMBER * call.elements
