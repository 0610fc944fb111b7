"""State machine of a rollout: each step as one value that replaces the last, or the reason why not.

What it decides follows from the stored rollout, its route, what the gates say and the time, and from nothing that
only one process remembers: whoever leads next decides the same. Pure; called by `rollout/rollouts`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from control_plane.core.errors import Conflict
from control_plane.objects.domain.rollout import Event, Phase, Rollout, Step
from control_plane.objects.domain.route import WHOLE, Route

MAX_EVENTS = 100
"""Events that are kept; the oldest are dropped."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the gates say now."""

    failed: str = ""
    """Why the next model is worse; empty where nothing says so."""
    samples: int = 0
    """Requests of the present step that it has computed, each unit once."""


def began(rollout: Rollout, *, now_s: float, by: str, before: tuple[Event, ...] = ()) -> Rollout:
    """Return a rollout at the beginning of its first step; `before` are the events of the route's last one."""
    told = f"began: {rollout.stable} -> {rollout.model}"
    return _at(replace(rollout, step=0, phase=Phase.CANARY, events=before), told, now_s=now_s, by=by)


def next_by_itself(rollout: Rollout, route: Route | None, verdict: Verdict, *, now_s: float) -> Rollout | None:
    """Return what the rollout becomes by itself now; None: it stays as it is."""
    if not rollout.is_under_way:
        return None
    if route is None:
        return _ended(rollout, Phase.ABORTED, "its route is gone", now_s=now_s)
    if rollout.phase is Phase.PROMOTING:
        if (route.model, route.version) == (rollout.model, rollout.version):
            return _ended(rollout, Phase.PROMOTED, "", now_s=now_s)
        if (route.model, route.version) == (rollout.stable, rollout.stable_version):
            return None  # the route is to be written first: `promoted_route`
    if (route.model, route.version) != (rollout.stable, rollout.stable_version) or route.targets:
        return _ended(rollout, Phase.ABORTED, "its route was changed meanwhile", now_s=now_s)
    if verdict.failed:
        return _ended(rollout, Phase.ROLLED_BACK, verdict.failed, now_s=now_s)
    step = rollout.steps[rollout.step]
    if rollout.is_paused or verdict.samples < step.samples or now_s < rollout.entered_s + step.min_s:
        return None
    if rollout.step + 1 < len(rollout.steps):
        following = rollout.steps[rollout.step + 1]
        return _at(replace(rollout, step=rollout.step + 1), f"step {rollout.step + 2}: {following.weight / 100:g} %", now_s=now_s)
    return promoted(rollout, now_s=now_s)


def promoted_route(rollout: Rollout, route: Route) -> Route | None:
    """Return the route as a rollout that is being promoted leaves it; None: it is not to be written."""
    is_its_own = (route.model, route.version) == (rollout.stable, rollout.stable_version)
    if rollout.phase is not Phase.PROMOTING or not is_its_own:
        return None
    return replace(route, model=rollout.model, version=rollout.version)


def rolled_back(rollout: Rollout, reason: str, *, now_s: float) -> Rollout:
    """Return the rollout after a failed gate."""
    return _ended(rollout, Phase.ROLLED_BACK, reason, now_s=now_s)


def promoted(rollout: Rollout, *, now_s: float, by: str = "") -> Rollout:
    """Return the rollout with its model promoted. Raises Conflict: it is not under way."""
    _require(rollout, "promoted")
    return _at(replace(rollout, phase=Phase.PROMOTING, is_paused=False), f"promoted: {rollout.model}", now_s=now_s, by=by)


def paused(rollout: Rollout, *, now_s: float, by: str = "") -> Rollout:
    """Return the rollout held at its step. Raises Conflict: it is not under way."""
    _require(rollout, "paused")
    return rollout if rollout.is_paused else _told(replace(rollout, is_paused=True), "paused", now_s=now_s, by=by)


def resumed(rollout: Rollout, *, now_s: float, by: str = "") -> Rollout:
    """Return the rollout going on. Raises Conflict: it is not under way."""
    _require(rollout, "resumed")
    return rollout if not rollout.is_paused else _told(replace(rollout, is_paused=False), "resumed", now_s=now_s, by=by)


def aborted(rollout: Rollout, *, now_s: float, by: str = "") -> Rollout:
    """Return the rollout ended: all requests go to the present model. Raises Conflict: it is not under way."""
    _require(rollout, "aborted")
    return _ended(rollout, Phase.ABORTED, "by hand", now_s=now_s, by=by)


def steps_of(percents: list[float], *, samples: int, min_s: float) -> tuple[Step, ...]:
    """Return the steps of these weights in percent."""
    return tuple(Step(round(percent * WHOLE / 100), samples, min_s) for percent in percents)


def _require(rollout: Rollout, what: str) -> None:
    if rollout.phase is not Phase.CANARY:
        why = f": {rollout.reason}" if rollout.reason else ""
        raise Conflict(f"the rollout of {rollout.route!r} cannot be {what}, it is {rollout.phase.replace('_', ' ')}{why}")


def _at(rollout: Rollout, what: str, *, now_s: float, by: str = "") -> Rollout:
    return _told(replace(rollout, entered_s=now_s), what, now_s=now_s, by=by)


def _ended(rollout: Rollout, phase: Phase, reason: str, *, now_s: float, by: str = "") -> Rollout:
    what = phase.replace("_", " ") + (f": {reason}" if reason else "")
    return _at(replace(rollout, phase=phase, reason=reason, is_paused=False), what, now_s=now_s, by=by)


def _told(rollout: Rollout, what: str, *, now_s: float, by: str) -> Rollout:
    events = (*rollout.events, Event(now_s, what, rollout.weight, by))
    return replace(rollout, events=events[-MAX_EVENTS:])
