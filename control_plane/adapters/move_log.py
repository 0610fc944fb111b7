"""`ports.MoveObserver`: a line in the log for each model that moves between tiers."""

from __future__ import annotations

import logging

from control_plane.domain.fleet import Tier

_log = logging.getLogger(__name__)

_MIB = 2**20


class MoveLog:
    """Knows nothing but what it is told."""

    def moved(self, model: str, *, source: Tier, target: Tier, size_bytes: int, took_s: float) -> None:
        sizes = {"mib": round(size_bytes / _MIB, 1), "seconds": round(took_s, 2)}
        _log.info("a model moved from %s to %s", source, target, extra={"model": model, **sizes})
