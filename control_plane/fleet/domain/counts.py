"""Counters of what one process's fleet has done since the process started, for metrics.

No counter has a label for a model or a server: there may be any number of them, and each would be a time series.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from control_plane.core.algorithms.duration_counter import DurationCounter
from control_plane.fleet.domain.event import FleetEvent, FleetEventKind
from control_plane.models.domain.description import Tier

LOAD_BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0)
"""Upper bounds of the histogram's buckets in seconds; one more bucket holds the rest. Python models load in
0.2 s and more."""

LOADING = "loading"
"""Reason of a refusal: the model is being loaded, and that takes longer than the request may wait."""


@dataclass(slots=True, eq=False)
class TierMoves:
    """Counters of a model's moves from one tier to another."""

    count: int = 0
    failed: int = 0
    bytes: int = 0
    seconds: float = 0.0


class Hedge(StrEnum):
    """Outcome of hedging for a request that was late, and could have been sent to a second server; label `result` of the
    metrics."""

    WON = "won"
    """The second server answered first."""
    LOST = "lost"
    """The first server did after all."""
    FAILED = "failed"
    """Neither had a good answer."""
    NO_IDLE_SERVER = "no_idle_server"
    """Not sent twice at first: no other server had an idle instance of its model."""


@dataclass(slots=True, eq=False)
class FleetCounts:
    """Counters of what one process's fleet did; it implements `models/ports.MoveObserver` as well."""

    events: Counter[FleetEventKind] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    """Refused requests by reason: `LOADING`, or an obstacle of `fleet/domain/placement`."""
    loads: DurationCounter = field(default_factory=lambda: DurationCounter(LOAD_BUCKETS_S))
    """Duration of loads, from a load's turn until the model is ready: it includes the unloads before it, and
    the fetch."""
    waits: DurationCounter = field(default_factory=lambda: DurationCounter(LOAD_BUCKETS_S))
    """Time that requests waited for their model before they were served."""
    hedges: Counter[Hedge] = field(default_factory=Counter)
    """Requests that were late enough to be hedged."""
    hedged_units: float = 0.0
    """Compute units that the second sends of hedged requests were expected to take: what hedging costs."""
    moves: dict[tuple[Tier, Tier], TierMoves] = field(default_factory=dict)

    def count_event(self, event: FleetEvent) -> None:
        """Count an event."""
        self.events[event.kind] += 1
        # A model that was already there, or that others loaded, has no duration, and is no measurement.
        if event.kind is FleetEventKind.LOADED and event.seconds:
            self.loads.add(event.seconds)

    def moved(self, model: str, *, source: Tier, target: Tier, size_bytes: int, took_s: float) -> None:
        """Count a move between tiers that succeeded."""
        move = self._between(source, target)
        move.count += 1
        move.bytes += size_bytes
        move.seconds += took_s

    def move_failed(self, model: str, *, source: Tier, target: Tier) -> None:
        """Count a move between tiers that failed."""
        self._between(source, target).failed += 1

    def _between(self, source: Tier, target: Tier) -> TierMoves:
        return self.moves.setdefault((source, target), TierMoves())
