"""Deaths of processes under a rollout's requests: a safeguard beside the gates, which would want a dozen of them.

A version that kills its stub, or its whole Triton, also breaks off what others had there, so each death is one event,
and not as many faults as it broke off. Where two events had requests of the next model, of different contents, among
what was broken off, and hardly any was without, that model is taken to be the cause. Pure; called by `rollout/rollouts`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from control_plane.inference.domain.observation import Observation

ONE_EVENT_S = 2.0
"""Requests that are broken off within so long of each other were broken off by one death."""
ENOUGH = 2
"""Deaths under requests of the next model from which it counts as their cause; two more for each without one."""


@dataclass(slots=True)
class Deaths:
    """Deaths of processes, as one gateway has seen them in one rollout."""

    last_s: float = float("-inf")
    units: set[int] = field(default_factory=set)
    """Requests of the next model that were broken off, one of each event."""
    others: int = 0
    """Events without one."""
    _is_with: bool = False

    def add(self, seen: Observation, now_s: float) -> None:
        """Count an observation."""
        if not seen.is_death:
            return
        is_new = now_s - self.last_s > ONE_EVENT_S
        if is_new:
            self._is_with, self.others = False, self.others + 1
        self.last_s = now_s
        if not seen.is_stable and not self._is_with:
            self._is_with, self.others = True, self.others - 1
            self.units.add(seen.digest)

    @property
    def why(self) -> str:
        """Why the next model is worse; empty where nothing says so."""
        count = len(self.units)
        if count < ENOUGH + 2 * self.others:
            return ""
        return f"deaths: {count} times a process has died under its requests"
