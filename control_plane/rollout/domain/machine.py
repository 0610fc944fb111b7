"""State machine of a rollout: each step as one value that replaces the last, or the reason why not.

What it decides follows from the stored rollout, its route, what the gates say and the time, and from nothing that
only one process remembers: whoever leads next decides the same. Pure; called by `rollout/rollouts`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from control_plane.core.errors import Conflict
from control_plane.objects.domain.rollout import Event, Phase, Rollout
from control_plane.objects.domain.route import WHOLE, Route, arm_name

MAX_EVENTS = 100
"""Events that are kept; the oldest are dropped."""
_MAY_CHANGE = (Phase.SHADOW, Phase.CANARY, Phase.BAKING)


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """Verdict of the gates on a rollout, by which it goes on, waits or is rolled back."""

    failed: str = ""
    """Why the next model is worse; empty where nothing says so."""
    doubt: str = ""
    """Why nobody knows whether it is, so that no stage is over; empty where that is no question."""
    samples: int = 0
    """Requests of the present step that it has computed, each unit once."""
    copies: int | None = None
    """Copies of it that are ready; None where each server has all models."""
    knows_all: bool = True
    """Whether this is what all gateways have seen, without which no stage is over."""

    def has_copies_for(self, rollout: Rollout, weight: int) -> bool:
        """Whether it has the copies that so many requests of 10,000 want."""
        return self.copies is None or self.copies >= rollout.copies_for(weight)


class Hold(StrEnum):
    """Why a rollout stays at its stage; label `reason` of the metrics."""

    PAUSED = "paused"
    """Somebody has paused it."""
    EVIDENCE = "evidence"
    """The evidence that other gateways have collected cannot be read now."""
    DOUBT = "doubt"
    """Without one tenant's requests a gate says otherwise."""
    SAMPLES = "samples"
    """The next model has computed too few requests of the present step."""
    TIME = "time"
    """The step, or the time beside the present model after the last one, is not over."""
    COPIES = "copies"
    """Copies of the next model are being loaded, which come before weight."""


def began(rollout: Rollout, *, now_s: float, by: str, before: tuple[Event, ...] = (), why_no_shadow: str = "") -> Rollout:
    """Return a rollout at its beginning: in its shadow, or its first step. `before` are the events of the route's last one."""
    told = f"began: {arm_name(rollout.stable, rollout.stable_version)} -> {arm_name(rollout.model, rollout.version)}"
    phase = Phase.CANARY if rollout.shadow is None else Phase.SHADOW
    if phase is Phase.SHADOW:
        told += ", shadow first" if rollout.shadow is not None and rollout.shadow.weight else ", its copies first"
    elif why_no_shadow:
        told += f", without a shadow: {why_no_shadow}"
    return _at(replace(rollout, step=0, phase=phase, events=before), told, now_s=now_s, by=by)


def next_by_itself(rollout: Rollout, route: Route | None, verdict: GateVerdict, *, now_s: float) -> Rollout | None:
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
    return None if held_by(rollout, verdict, now_s=now_s) else _next_stage(rollout, now_s=now_s)


def held_by(rollout: Rollout, verdict: GateVerdict, *, now_s: float) -> Hold | None:
    """Return why a rollout stays at its stage; None: it does not, or no evidence decides about it any more."""
    if not rollout.is_under_way or rollout.phase is Phase.PROMOTING:
        return None
    if rollout.is_paused:
        return Hold.PAUSED
    if not verdict.knows_all:
        return Hold.EVIDENCE
    if verdict.doubt:
        return Hold.DOUBT
    if rollout.phase is Phase.BAKING:
        return Hold.TIME if now_s < rollout.entered_s + rollout.bake_s else None
    present = rollout.present_step
    if verdict.samples < present.samples:
        return Hold.SAMPLES
    if now_s < rollout.entered_s + present.min_s:
        return Hold.TIME
    return None if verdict.has_copies_for(rollout, _following(rollout)[1]) else Hold.COPIES


def _following(rollout: Rollout) -> tuple[int, int]:
    """Return the number of the step after the present one, and the weight that the next model has there."""
    number = 0 if rollout.phase is Phase.SHADOW else rollout.step + 1
    return number, rollout.steps[number].weight if number < len(rollout.steps) else WHOLE


def _next_stage(rollout: Rollout, *, now_s: float) -> Rollout:
    if rollout.phase is Phase.BAKING:
        return promoted(rollout, now_s=now_s)
    number, weight = _following(rollout)
    if number < len(rollout.steps):
        return _at(replace(rollout, phase=Phase.CANARY, step=number), f"step {number + 1}: {weight / 100:g} %", now_s=now_s)
    if rollout.bake_s > 0.0:
        told = f"all requests, for {rollout.bake_s:g} s beside {arm_name(rollout.stable, rollout.stable_version)}"
        return _at(replace(rollout, phase=Phase.BAKING), told, now_s=now_s)
    return promoted(rollout, now_s=now_s)


def promoted_route(rollout: Rollout, route: Route) -> Route | None:
    """Return the route as a rollout that is being promoted leaves it; None: it is not to be written."""
    is_its_own = (route.model, route.version) == (rollout.stable, rollout.stable_version)
    if rollout.phase is not Phase.PROMOTING or not is_its_own:
        return None
    # A mirror of the model that is promoted has come to its end: a route cannot copy requests to its own model.
    mirror = None if route.mirror is not None and route.mirror.may_be((rollout.model, rollout.version)) else route.mirror
    return replace(route, model=rollout.model, version=rollout.version, mirror=mirror)


def promoted(rollout: Rollout, *, now_s: float, by: str = "") -> Rollout:
    """Return the rollout with its model promoted. Raises Conflict: it is not under way."""
    _require(rollout, "promoted")
    return _at(
        replace(rollout, phase=Phase.PROMOTING, is_paused=False),
        f"promoted: {arm_name(rollout.model, rollout.version)}",
        now_s=now_s,
        by=by,
    )


def paused(rollout: Rollout, *, now_s: float, by: str = "") -> Rollout:
    """Return the rollout held at its step. Raises Conflict: it is not under way."""
    _require(rollout, "paused")
    return rollout if rollout.is_paused else _with_event(replace(rollout, is_paused=True), "paused", now_s=now_s, by=by)


def resumed(rollout: Rollout, *, now_s: float, by: str = "") -> Rollout:
    """Return the rollout going on. Raises Conflict: it is not under way."""
    _require(rollout, "resumed")
    return rollout if not rollout.is_paused else _with_event(replace(rollout, is_paused=False), "resumed", now_s=now_s, by=by)


def aborted(rollout: Rollout, *, now_s: float, by: str = "") -> Rollout:
    """Return the rollout ended: all requests go to the present model. Raises Conflict: it is not under way."""
    _require(rollout, "aborted")
    return _ended(rollout, Phase.ABORTED, "by hand", now_s=now_s, by=by)


def _require(rollout: Rollout, what: str) -> None:
    if rollout.phase not in _MAY_CHANGE:
        why = f": {rollout.reason}" if rollout.reason else ""
        raise Conflict(f"the rollout of {rollout.route!r} cannot be {what}, it is {rollout.phase.replace('_', ' ')}{why}")


def _at(rollout: Rollout, what: str, *, now_s: float, by: str = "") -> Rollout:
    return _with_event(replace(rollout, entered_s=now_s), what, now_s=now_s, by=by)


def _ended(rollout: Rollout, phase: Phase, reason: str, *, now_s: float, by: str = "") -> Rollout:
    what = phase.replace("_", " ") + (f": {reason}" if reason else "")
    return _at(replace(rollout, phase=phase, reason=reason, is_paused=False), what, now_s=now_s, by=by)


def _with_event(rollout: Rollout, what: str, *, now_s: float, by: str) -> Rollout:
    events = (*rollout.events, Event(now_s, what, rollout.weight, by))
    return replace(rollout, events=events[-MAX_EVENTS:])
