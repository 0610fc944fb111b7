"""Steps of rollouts, for tests, by their weights in percent."""

from __future__ import annotations

from control_plane.objects.domain.rollout import Step
from control_plane.objects.domain.route import WHOLE


def steps_of(percents: list[float], *, samples: int, min_s: float) -> tuple[Step, ...]:
    """The steps of these weights in percent."""
    return tuple(Step(round(percent * WHOLE / 100), samples, min_s) for percent in percents)
