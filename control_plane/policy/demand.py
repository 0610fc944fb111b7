"""How much a model is used, and how soon it may be used again; kept by `services/fleet`, asked by placement's callers and the admin API."""

from __future__ import annotations

from math import exp, expm1

from control_plane.domain.fleet import FAST_S, SLOW_S, ModelFacts


def after_use(facts: ModelFacts, now_s: float) -> None:
    """Count one request that comes now, whether it is served or turned away."""
    passed_s = max(0.0, now_s - facts.last_used_s)
    facts.rate_fast = facts.rate_fast * exp(-passed_s / FAST_S) + 1 / FAST_S
    facts.rate_slow = facts.rate_slow * exp(-passed_s / SLOW_S) + 1 / SLOW_S
    facts.last_used_s = max(now_s, facts.last_used_s)


def chance_of_use(facts: ModelFacts, now_s: float, horizon_s: float) -> float:
    """That it is asked for at least once within the horizon."""
    return -expm1(-facts.uses_per_s(now_s) * horizon_s)
