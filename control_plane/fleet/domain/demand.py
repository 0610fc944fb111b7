"""How much a model is used: counted by `fleet/view/state` and the simulator; `ModelFacts` tells what is expected to come of it."""

from __future__ import annotations

from math import exp

from control_plane.fleet.domain.fleet import FAST_S, SLOW_S, ModelFacts


def after_use(facts: ModelFacts, now_s: float, count: int = 1) -> None:
    """Count so many requests that come now, whether they are served or turned away."""
    passed_s = max(0.0, now_s - facts.last_used_s)
    facts.rate_fast = facts.rate_fast * exp(-passed_s / FAST_S) + count / FAST_S
    facts.rate_slow = facts.rate_slow * exp(-passed_s / SLOW_S) + count / SLOW_S
    facts.last_used_s = max(now_s, facts.last_used_s)
