"""Counts requests into a model's exponentially decaying rates; `ModelFacts.uses_per_s` and `demand` are
derived from them.

`fleet/view/state` and the simulator call it.
"""

from __future__ import annotations

from math import exp

from control_plane.fleet.domain.fleet import FAST_S, SLOW_S, ModelFacts


def count_uses(facts: ModelFacts, now_s: float, count: int = 1) -> None:
    """Count `count` requests for the model that arrive now, whether they are served or refused."""
    passed_s = max(0.0, now_s - facts.last_used_s)
    # Decay since the last use, plus this use's share: an average that needs no timer and no history.
    facts.rate_fast = facts.rate_fast * exp(-passed_s / FAST_S) + count / FAST_S
    facts.rate_slow = facts.rate_slow * exp(-passed_s / SLOW_S) + count / SLOW_S
    facts.last_used_s = max(now_s, facts.last_used_s)
