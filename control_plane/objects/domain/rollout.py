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
    """Phase of a rollout."""

    SHADOW = "shadow"
    """The next model gets copies of requests, whose answers nobody waits for."""
    CANARY = "canary"
    """The next model gets the weight of the present step."""
    BAKING = "baking"
    """The next model gets all requests; the present model keeps its copies, and is the route's as soon as somebody says so."""
    PROMOTING = "promoting"
    """The next model gets all requests; the route is to be written yet."""
    PROMOTED = "promoted"
    """The next model is the route's."""
    ROLLED_BACK = "rolled_back"
    """The next model was worse, and gets no request any more."""
    ABORTED = "aborted"
    """Somebody has ended the rollout."""


UNDER_WAY = frozenset((Phase.SHADOW, Phase.CANARY, Phase.BAKING, Phase.PROMOTING))


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
class Agreement:
    """Meaning of two models answering alike, and how often they may not (`rollout/domain/agreement`)."""

    kind: str
    output: str = ""
    """Output tensor that is compared; empty for the only one, or for all of them where the kind can."""
    limit: float | None = None
    """Limit of the kind, such as the least cosine; None for the kind's own."""
    may_differ: float | None = None
    """Part of the answers that may differ; None for the kind's own."""


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
    shadow: Step | None = None
    """The phase before the first step, in which `weight` requests of 10,000 are copied to the next model; None for none."""
    agreement: Agreement | None = None
    """How the answers to copied requests are compared; None: they are not."""
    bake_s: float = 0.0
    """Seconds for which the present model keeps its copies after the last step."""
    copies: int = 1
    """Copies that the present model had when it began; 1 where there is one server."""
    token: int = 0
    """Fencing token of the leader that wrote it last."""
    events: tuple[Event, ...] = ()
    """What has happened, oldest first."""

    @property
    def places(self) -> tuple[tuple[str, str], tuple[str, str]]:
        """Model and version of the present model, and of the next one."""
        return (self.stable, self.stable_version), (self.model, self.version)

    @property
    def is_under_way(self) -> bool:
        """Whether it decides where requests go."""
        return self.phase in UNDER_WAY

    @property
    def weight(self) -> int:
        """Requests of 10,000 that the next model gets."""
        if self.phase is Phase.CANARY:
            return self.steps[self.step].weight
        return WHOLE if self.phase in (Phase.BAKING, Phase.PROMOTING, Phase.PROMOTED) else 0

    @property
    def stage(self) -> int:
        """Number of the present stage: 0 for the shadow, then the steps, then all that follows. It only grows."""
        if self.phase is Phase.SHADOW:
            return 0
        return self.step + (1 if self.phase is Phase.CANARY else 2)

    @property
    def present_step(self) -> Step:
        """The step that the rollout is at, whose samples and time it waits for."""
        if self.phase is Phase.SHADOW and self.shadow is not None:
            return self.shadow
        return self.steps[self.step]

    def copies_for(self, weight: int) -> int:
        """Copies of the next model that so many requests of 10,000 want, at least one."""
        return max(1, -(-weight * self.copies // WHOLE))

    @property
    def kept(self) -> dict[str, int]:
        """Copies, by model, that are not to go while it is under way: the present model's, and those that the next one needs
        by the next step."""
        if not self.is_under_way:
            return {}
        following = self.steps[min(self.step + (self.phase is Phase.CANARY), len(self.steps) - 1)].weight
        is_last = self.phase is not Phase.SHADOW and self.step + 1 == len(self.steps)
        wanted = self.copies_for(WHOLE if is_last else following)
        return {self.stable: max(self.copies, wanted if self.model == self.stable else 0)} | (
            {} if self.model == self.stable else {self.model: wanted}
        )


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
    if rollout.phase is Phase.SHADOW:
        return route
    if rollout.phase is Phase.CANARY:
        return replace(route, targets=(Target(rollout.model, rollout.weight, rollout.version),), salt=rollout.id)
    # The present model stays a target without weight: sequences that began there end there.
    targets = (Target(route.model, 0, route.version),)
    return replace(route, model=rollout.model, version=rollout.version, targets=targets, salt=rollout.id)
