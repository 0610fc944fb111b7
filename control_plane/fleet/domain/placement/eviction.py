"""Eviction policy: which models are evicted from a server to make room for another one, or because it exceeds its budget.

Models that save the least waiting per byte are evicted first: the rate at which requests would need the model again, times the
duration of its load. `placement` adds the cost of evictions to the cost of each server. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import expm1

from control_plane.core.model import ModelState
from control_plane.fleet.domain.fleet import Fleet, ModelFacts, Replica, Server
from control_plane.fleet.domain.placement.limits import LONG_S, SOON_S, PlacementLimits


class Eviction:
    """Eviction policy on one fleet as it is now."""

    def __init__(self, fleet: Fleet, now_s: float, limits: PlacementLimits) -> None:
        self._fleet = fleet
        self._now_s = now_s
        self._limits = limits

    def victims_on(self, server: Server, facts: ModelFacts) -> list[str] | None:
        """Models to evict from the server, cheapest first; None if evicting everything that may be evicted is
        not enough."""
        name, replicas = facts.name, server.replicas.values()
        staying = sum(replica.bytes for replica in replicas if replica.model != name and not self._is_leaving(replica))
        missing = staying + facts.resident_bytes - server.budget_bytes
        if missing <= 0:
            return []
        if not self._limits.evicts:
            return None
        if facts.is_on_trial and facts.failed_only_on in ("", server.name):
            return None  # the load will probably fail again: nothing goes for it, unless the fault may be another server's
        chosen: list[str] = []
        for name in self.may_go(server):
            chosen.append(name)
            missing -= server.replicas[name].bytes
            if missing <= 0:
                return _needed(chosen, server, -missing)
        return None

    def _is_leaving(self, replica: Replica) -> bool:
        """Whether the replica's memory will soon be free."""
        return replica.state is ModelState.UNLOADING and self._now_s - replica.since_s < self._limits.longest_unload_s

    def may_go(self, server: Server) -> list[str]:
        """Models on the server that may be evicted now, cheapest first."""
        return [
            name for *_, name in sorted(self._rank(replica) for replica in server.replicas.values() if self._may_go_in_s(replica) <= 0.0)
        ]

    def _may_go_in_s(self, replica: Replica) -> float:
        """Seconds until the replica may be evicted, 0 for now: it may be serving, protected because it is
        new, or pinned."""
        facts = self._fleet.models.get(replica.model)
        # A step goes with its ensemble, and the state of a sequence is nowhere else.
        if replica.is_step or replica.sequences or self._is_pinned(facts):
            return LONG_S
        if replica.in_flight or replica.state is ModelState.UNLOADING:
            return SOON_S if facts is None else max(facts.service_s, SOON_S)
        protected_s = 0.0 if facts is None else self._limits.min_residency_loads * facts.load_s
        if replica.state is ModelState.READY:
            return max(0.0, replica.since_s + protected_s - self._now_s)
        return max(SOON_S, replica.ready_s + protected_s - self._now_s)

    def _is_pinned(self, facts: ModelFacts | None) -> bool:
        """Whether the model has no more ready replicas than it has to have, so that none may be evicted."""
        if facts is None or not self._fleet.least_replicas(facts):
            return False
        # A replica on an ejected server counts as one to keep: the server may recover.
        is_there = any(server.is_up and replica.state is ModelState.READY for server, replica in self._fleet.replicas(facts.name))
        return is_there and len(self._fleet.ready_replicas(facts.name)) <= self._fleet.least_replicas(facts)

    def _rank(self, replica: Replica) -> tuple[float, int, str]:
        """Sort key of eviction: seconds of loading that the replica saves per second and byte, then its
        priority."""
        facts = self._fleet.models.get(replica.model)
        if facts is None:
            return (0.0, 0, replica.model)
        return (self.missed_per_s(facts) * facts.load_s / max(replica.bytes, 1), facts.spec.priority, replica.model)

    def missed_per_s(self, facts: ModelFacts) -> float:
        """Rate at which requests would need another load if this replica went.

        Where there are other replicas it is multiplied by the square of how busy these would be, which is
        about how often two requests have to wait for another load.
        """
        uses_per_s = facts.uses_per_s(self._now_s)
        if len(self._fleet.holders[facts.name]) == 1:
            return uses_per_s
        others = len(self._fleet.ready_replicas(facts.name)) - 1
        return uses_per_s if others <= 0 else uses_per_s * min(1.0, facts.demand(self._now_s) / others) ** 2

    def harm_s(self, victim: str) -> float:
        """Expected seconds that others wait for a load of the victim: load time times the probability of a
        use within the horizon.

        A model with other replicas does not count for less: simulations showed that replicas dropped that
        lightly are soon loaded again.
        """
        facts = self._fleet.models.get(victim)
        if facts is None:
            return 0.0
        return -expm1(-facts.uses_per_s(self._now_s) * self._limits.horizon_loads * facts.load_s) * facts.load_s

    def free_in_s(self, server: Server) -> float:
        """Seconds until something on the server may be evicted, at the earliest and as far as can be told."""
        soonest = (self._may_go_in_s(replica) for replica in server.replicas.values())
        return max(SOON_S, min(soonest, default=LONG_S))


def _needed(chosen: Sequence[str], server: Server, spare: int) -> list[str]:
    """The chosen victims without those that can stay, now that a larger one goes as well; the most valuable
    ones stay."""
    needed = []
    for name in reversed(chosen):
        if server.replicas[name].bytes <= spare:
            spare -= server.replicas[name].bytes
        else:
            needed.append(name)
    return needed[::-1]
