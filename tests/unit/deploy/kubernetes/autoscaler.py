"""The HorizontalPodAutoscaler's published algorithm, for one external metric with an average value as its target.

From "Horizontal Pod Autoscaling" of Kubernetes' documentation: every 15 s ceil(metric / target), no change within a
tolerance of a tenth; scaling down goes to the highest of the recommendations of the stabilisation window; policies
bound how much may change in their period. Without the metric nothing is scaled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

PERIOD_S = 15.0
TOLERANCE = 0.1


@dataclass
class Autoscaler:
    """One HPA with its memory."""

    behavior: Mapping[str, Any]
    target: float
    least: int
    most: int
    _recommended: list[tuple[float, int]] = field(default_factory=list)
    _changes: list[tuple[float, int]] = field(default_factory=list)
    """(when, by how much) of each change."""

    def replicas(self, now_s: float, current: int, metric: float | None) -> int:
        """The replicas from now on."""
        if metric is None:
            return current
        is_near = current and abs(metric / (self.target * current) - 1.0) <= TOLERANCE
        wanted = current if is_near else ceil(metric / self.target)
        wanted = min(max(wanted, self.least), self.most)
        self._recommended.append((now_s, wanted))
        down, up = self.behavior["scaleDown"], self.behavior["scaleUp"]
        if wanted < current:
            window_s = down["stabilizationWindowSeconds"]
            wanted = min(current, max(each for at_s, each in self._recommended if now_s - at_s <= window_s))
            wanted = max(wanted, min(self._reach(now_s, current, policy, -1) for policy in down["policies"]))
        elif wanted > current:
            wanted = min(wanted, max(self._reach(now_s, current, policy, 1) for policy in up["policies"]))
        if wanted != current:
            self._changes.append((now_s, wanted - current))
        return wanted

    def _reach(self, now_s: float, current: int, policy: Mapping[str, Any], sign: int) -> int:
        """How far a policy lets it go, from what there was at the beginning of its period."""
        recent = sum(by for at_s, by in self._changes if now_s - at_s < policy["periodSeconds"] and by * sign > 0)
        begin = current - recent
        step = policy["value"] if policy["type"] == "Pods" else ceil(begin * policy["value"] / 100)
        return int(begin + sign * step)


def rate(samples: Sequence[tuple[float, float]], now_s: float, window_s: float) -> float:
    """PromQL's rate() of a counter, without its extrapolation; 0 of fewer than two samples."""
    found = [each for each in samples if now_s - window_s <= each[0] <= now_s]
    if len(found) < 2:
        return 0.0
    return (found[-1][1] - found[0][1]) / (found[-1][0] - found[0][0])
