"""Replicas that rollouts need: checked for room before a rollout, loaded before requests arrive, and kept from eviction.

Implements `rollout/ports.Copies` for a fleet; `app/gateway/rollouts` passes it to the rollouts.
"""

from __future__ import annotations

from collections.abc import Mapping

from control_plane.fleet.domain.room import replicas_beside
from control_plane.fleet.view.state import FleetState


class KeptReplicas:
    """Replicas that rollouts need, in a fleet of one process's view."""

    def __init__(self, state: FleetState) -> None:
        self._state = state

    def keep(self, wanted: Mapping[str, int]) -> None:
        """Keep at least so many replicas of these models, in place of what was kept before."""
        self._state.keep_replicas(wanted)

    def ready(self, model: str) -> int:
        """Return how many replicas of a model are ready."""
        return len(self._state.fleet.ready_replicas(model))

    def why_no_room(self, model: str, count: int, stay: Mapping[str, int]) -> str:
        """Return why there cannot be so many replicas of a model while those of others stay; empty where there can."""
        facts = self._state.fleet.models.get(model)
        if facts is None:
            return f"the fleet does not know the model {model!r}"
        room = replicas_beside(self._state.fleet, model, stay)
        if room >= count:
            return ""
        beside = " and ".join(f"{number} of {name!r}" for name, number in stay.items() if name != model)
        need = f"{count} replicas of {model!r}, of {facts.resident_bytes:,} bytes each,"
        return f"there is no room for both: {need} beside {beside}; there is room for {room}"
