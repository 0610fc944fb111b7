"""Buffer of what became of requests that a rollout has assigned, until the gateway judges them (`rollout/`).

Only computed requests are observed, since a cold canary cannot be compared with stable's warm cache; what its caller
has done wrong, or called off, says nothing of a model. Called by `inference/inference` and the frontends' streams.
"""

from __future__ import annotations

from control_plane.auth.access import Access
from control_plane.inference.domain.observation import Observation
from control_plane.inference.in_flight.running_request import AuthorizedRequest
from control_plane.inference.retries.faults import DEATHS, Fault
from control_plane.inference.routes.targets import Arm
from control_plane.objects.domain.route import Route

MAX_HELD = 2_000
"""Most observations that are kept between two reads. Of more a sample is kept, chosen by their digests alone, so that all of one
unit are in it or none."""

_FULL = 2**32
_UNCOUNTED = frozenset((Fault.NOT_SENT, Fault.MODEL_MISSING, Fault.NOT_READY, Fault.QUEUE_FULL, Fault.EXPIRED_IN_QUEUE, Fault.STOPPING))
"""Faults that say nothing of how good a model is: it is loading, busy, or its server is going."""


def says_something(fault: Fault | None) -> bool:
    """Whether a fault, or that there is none, says how good a model is."""
    return fault not in _UNCOUNTED


def tenant_apart(route: Route, tenant: str) -> str:
    """Return the tenant whose evidence is kept apart from others', empty where nobody's is: who sticks by tenant or key is at one
    model, so that there is nothing to compare it with apart, and counts once."""
    return "" if route.sticky in ("tenant", "key") else tenant


class ArmObservations:
    """Bounded buffer of observations of one process."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._observations: list[Observation] = []
        self._below = _FULL

    def add(self, arm: Arm, running: AuthorizedRequest, fault: Fault | None, *, now_s: float) -> None:
        """Observe a request that has just been answered, unless it was not computed or no rollout has assigned it."""
        rollout = self._access.rollout(arm.route.name)
        if rollout is None or not arm.is_assigned or running.sent_s is None or running.is_cache_hit or not says_something(fault):
            return
        # Another rollout, which has ended since, may have assigned it, or the sequence that it goes on with.
        if arm.route.salt != rollout.id or arm.place not in rollout.places:
            return
        is_stable, took_s = arm.place == rollout.places[0], now_s - running.sent_s  # in the bake, the next model is the route's own
        tenant = tenant_apart(arm.route, running.principal.tenant)
        self._keep(
            Observation(arm.route.name, rollout.id, is_stable, arm.digest, fault is not None, took_s, fault in DEATHS, tenant=tenant)
        )

    def add_pair(self, seen: Observation) -> None:
        """Observe a copied request."""
        self._keep(seen)

    def _keep(self, seen: Observation) -> None:
        if seen.digest >> 32 < self._below:
            self._observations.append(seen)
        while len(self._observations) >= MAX_HELD:
            self._below //= 2
            self._observations = [each for each in self._observations if each.digest >> 32 < self._below]

    def take(self) -> tuple[Observation, ...]:
        """Return what was observed since the last call."""
        taken, self._observations, self._below = tuple(self._observations), [], _FULL
        return taken
