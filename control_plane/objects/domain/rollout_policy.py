"""Rollout policies: how next models take over, by a name that many rollouts are begun with.

A rollout copies its policy when it begins, so that a policy that is changed changes no rollout that is under way.
"""

from __future__ import annotations

from dataclasses import dataclass

from control_plane.objects.domain.rollout import Step


@dataclass(frozen=True, slots=True)
class GatePolicy:
    """Gates of a rollout: the comparisons with the present model that roll the next one back."""

    slower_by: float = 1.1
    """A request of the next model counts as slow from so many times what is slow for the present one."""
    alpha: float = 0.01
    """Chance that it is rolled back though it is no worse."""
    agreement: str = ""
    """Kind of agreement between both models' answers, such as `exact`; empty: answers are not compared."""


@dataclass(frozen=True, slots=True)
class RolloutPolicy:
    """Named policy of rollouts: steps, gates and bake time."""

    name: str
    steps: tuple[Step, ...]
    gates: GatePolicy = GatePolicy()
    bake_s: float = 0.0
    """Seconds after the last step for which the present model stays ready to take all requests back."""
