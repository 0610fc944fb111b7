"""What a process has counted of its fleet's models, since it began: no name of a model or a server, of which there may be any number."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from control_plane.fleet.domain.event import FleetEvent, FleetEventKind
from control_plane.models.domain.description import Tier

LOAD_BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0)
"""Upper bounds of the times that are counted together; one more bucket holds the rest. Python models load in 0.2 s and more."""

LOADING = "loading"
"""Why a request was refused: its model is being loaded, and takes longer than the request may."""


@dataclass(slots=True, eq=False)
class Times:
    """How long something took: how many by bucket (not accumulated), and seconds in all."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(LOAD_BUCKETS_S) + 1))
    seconds: float = 0.0

    def add(self, took_s: float) -> None:
        self.buckets[bisect_left(LOAD_BUCKETS_S, took_s)] += 1
        self.seconds += took_s


@dataclass(slots=True, eq=False)
class Moves:
    """From one tier to another."""

    count: int = 0
    failed: int = 0
    bytes: int = 0
    seconds: float = 0.0


@dataclass(slots=True, eq=False)
class FleetCounts:
    """Counters of what one process's fleet did; `models/ports.MoveObserver` as well."""

    events: Counter[FleetEventKind] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    """Requests by what stood in the way of their model: `LOADING`, or an obstacle of `fleet/domain/placement`."""
    loads: Times = field(default_factory=Times)
    """From when a load has its turn until the model is ready: with what goes for it, and its fetch."""
    waits: Times = field(default_factory=Times)
    """Of requests that waited for their model and were served then."""
    moves: dict[tuple[Tier, Tier], Moves] = field(default_factory=dict)

    def happened(self, event: FleetEvent) -> None:
        self.events[event.kind] += 1
        if event.kind is FleetEventKind.LOADED and event.seconds:
            self.loads.add(event.seconds)

    def moved(self, model: str, *, source: Tier, target: Tier, size_bytes: int, took_s: float) -> None:
        move = self._between(source, target)
        move.count += 1
        move.bytes += size_bytes
        move.seconds += took_s

    def move_failed(self, model: str, *, source: Tier, target: Tier) -> None:
        self._between(source, target).failed += 1

    def _between(self, source: Tier, target: Tier) -> Moves:
        return self.moves.setdefault((source, target), Moves())
