"""The router that decides as `fleet/routing/model_router` and `fleet/reconciler` do in production, by the
same policies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from random import Random

from control_plane.fleet.domain.fleet import NEVER_S, Fleet
from control_plane.fleet.domain.placement.autoscaling import desired_replicas, replica_to_remove
from control_plane.fleet.domain.placement.limits import LIMITS
from control_plane.fleet.domain.placement.placement import Placement, place, victims_on
from control_plane.fleet.domain.routing.routing import choose
from control_plane.fleet.simulation.router import LoadReplica, RefuseRequest, SendRequest, UnloadReplica
from control_plane.fleet.simulation.workload import Request


class ProductionRouter:
    """Production's router: the replica that is expected to serve a request first, and a load where there is
    none or where it is sooner."""

    tick_s: float | None = 0.5
    """The reconciler's tick."""
    requests_may_move = True

    def __init__(self, random: Random) -> None:
        self._random = random
        self._no_further_replica: dict[str, tuple[float, float]] = {}
        """Negative cache, as in `ModelRouter`."""

    def choose(self, request: Request, fleet: Fleet, now_s: float) -> SendRequest | RefuseRequest:
        """Choose a replica, or place a new one if that is expected to be sooner."""
        model = request.model
        found = choose(fleet, model, now_s, self._random.random())
        before_s, unless_longer_than_s = self._no_further_replica.get(model, (now_s, inf))
        if found.needs_placement and (found.server is None or now_s >= before_s or found.expected_s > unless_longer_than_s):
            placed = place(fleet, model, now_s, must_beat_s=found.expected_s)
            if isinstance(placed, Placement):
                return SendRequest(placed.server)
            if found.server is None:
                return self._refused(fleet, model, now_s, placed.retry_after_s)
            until_s = now_s + LIMITS.negative_cache_loads * fleet.models[model].load_s
            self._no_further_replica[model] = until_s, placed.must_beat_s
        assert found.server is not None, "without a server `choose` wants a placement"
        return SendRequest(found.server)

    def _refused(self, fleet: Fleet, model: str, now_s: float, retry_after_s: float) -> RefuseRequest:
        """Let the request ask again later, as long as its deadline allows."""
        facts = fleet.models[model]
        if facts.refused_since_s == NEVER_S:
            facts.refused_since_s = now_s
        return RefuseRequest(retry_after_s)

    def victims(self, model: str, server: str, fleet: Fleet, now_s: float) -> Sequence[str] | None:
        """Choose the models to evict for a load whose turn has come, as production does (`placement.victims_on`)."""
        return victims_on(fleet, fleet.servers[server], model, now_s)

    def tick(self, fleet: Fleet, now_s: float) -> Iterable[LoadReplica | UnloadReplica]:
        """Have as many replicas as demand asks for, changing them by one at a time."""
        for facts in list(fleet.models.values()):
            have, wanted = len(fleet.staying_replicas(facts.name)), desired_replicas(facts, fleet, now_s)
            if have < wanted and not fleet.is_loading(facts.name):
                placed = place(fleet, facts.name, now_s)
                if isinstance(placed, Placement):
                    yield LoadReplica(facts.name, placed.server)
            elif have > wanted and (server := replica_to_remove(facts, fleet, now_s)) is not None:
                yield UnloadReplica(facts.name, server)
