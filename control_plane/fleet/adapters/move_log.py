"""`models/ports.MoveObserver`: logs and counts each move of a model between tiers."""

from __future__ import annotations

import logging

from control_plane.fleet.domain.counts import FleetCounts
from control_plane.models.domain.description import Tier

_log = logging.getLogger(__name__)

_MIB = 2**20


class MoveLog:
    """Observer of moves between tiers: a log line and a count for each."""

    def __init__(self, counts: FleetCounts) -> None:
        self._counts = counts

    def moved(self, model: str, *, source: Tier, target: Tier, size_bytes: int, took_s: float) -> None:
        self._counts.moved(model, source=source, target=target, size_bytes=size_bytes, took_s=took_s)
        sizes = {"mib": round(size_bytes / _MIB, 1), "seconds": round(took_s, 2)}
        _log.info("a model moved from %s to %s", source, target, extra={"model": model, **sizes})

    def move_failed(self, model: str, *, source: Tier, target: Tier) -> None:
        # The reason is logged where the move failed.
        self._counts.move_failed(model, source=source, target=target)
