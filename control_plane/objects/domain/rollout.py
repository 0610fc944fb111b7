"""Rollouts as they are stored: what is to be done, how far it is, and what has happened.

The one stored object is all that a rollout is: `in_force` derives the weights of its route from it, on every process
and at every moment, so that a step is one write, and whoever leads next goes on from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from control_plane.objects.domain.route import WHOLE, Route, Target


class Phase(StrEnum):
    """How far a rollout is."""

    CANARY = "canary"
    """The next model gets the weight of the present step."""
    PROMOTING = "promoting"
    """It gets all requests; the route is to be written yet."""
    PROMOTED = "promoted"
    """It is the route's model."""
    ROLLED_BACK = "rolled_back"
    """It was worse, and gets no request any more."""
    ABORTED = "aborted"
    """Somebody has ended it."""


UNDER_WAY = frozenset((Phase.CANARY, Phase.PROMOTING))


@dataclass(frozen=True, slots=True)
class Step:
    """Step of a rollout: it is over once so many requests were computed by the next model, in so many seconds at least."""

    weight: int
    """Requests of 10,000 that the next model gets."""
    samples: int
    min_s: float
    name: str = ""
    """What people call it, such as `half`; empty: its number is its name."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that has happened in a rollout."""

    at_s: float
    """Seconds since 1970."""
    what: str
    weight: int
    """Weight of the next model from then on."""
    by: str = ""
    """Who did it: an administrator's name or key; empty for the rollout itself."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """Rollout of a route's next model. A route has one at a time; its object stays until the next begins."""

    route: str
    id: str
    """32 hexadecimal digits that no other rollout has. They are hashed too, so that each draws its own callers."""
    model: str
    """The next model."""
    stable: str
    """The route's model when it began."""
    steps: tuple[Step, ...]
    version: str = ""
    stable_version: str = ""
    phase: Phase = Phase.CANARY
    step: int = 0
    entered_s: float = 0.0
    """When the present step began, in seconds since 1970."""
    is_paused: bool = False
    """Whether it stays at its step; a model that is worse is rolled back all the same."""
    reason: str = ""
    """Why it ended as it did."""
    slower_by: float = 1.1
    """A request of the next model counts as slow from so many times what is slow for the present one."""
    alpha: float = 0.01
    """Chance that it is rolled back though it is no worse."""
    token: int = 0
    """Fencing token of the leader that wrote it last."""
    events: tuple[Event, ...] = ()
    """What has happened, oldest first."""

    @property
    def is_under_way(self) -> bool:
        """Whether it decides where requests go."""
        return self.phase in UNDER_WAY

    @property
    def weight(self) -> int:
        """Requests of 10,000 that the next model gets."""
        if self.phase is Phase.CANARY:
            return self.steps[self.step].weight
        return WHOLE if self.phase in (Phase.PROMOTING, Phase.PROMOTED) else 0


def in_force(routes: Mapping[str, Route], rollouts: Mapping[str, Rollout]) -> dict[str, Route]:
    """Return the routes as the rollouts that are under way change them."""
    changed = dict(routes)
    for rollout in rollouts.values():
        route = routes.get(rollout.route)
        # A route that somebody has given another model meanwhile is not the rollout's any more, which ends by that.
        if route is not None and rollout.is_under_way and (route.model, route.version) == (rollout.stable, rollout.stable_version):
            changed[route.name] = _changed(route, rollout)
    return changed


def _changed(route: Route, rollout: Rollout) -> Route:
    if rollout.phase is Phase.CANARY:
        return replace(route, targets=(Target(rollout.model, rollout.weight, rollout.version),), salt=rollout.id)
    # The present model stays a target without weight: sequences that began there end there.
    targets = (Target(route.model, 0, route.version),)
    return replace(route, model=rollout.model, version=rollout.version, targets=targets, salt=rollout.id)
