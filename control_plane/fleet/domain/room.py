"""Capacity for one model beside others that must stay: the number of its replicas that the fleet could hold at the same time.

Any other model may be evicted, so memory in use now does not count. Pure; called by `fleet/kept_replicas`.
"""

from __future__ import annotations

from collections.abc import Mapping

from control_plane.core.model import ModelState
from control_plane.fleet.domain.fleet import Fleet, Server


def replicas_beside(fleet: Fleet, model: str, stay: Mapping[str, int]) -> int:
    """Return how many replicas of a model there could be while other models keep so many of theirs."""
    facts = fleet.models.get(model)
    if facts is None:
        return 0
    fitting = [server for server in fleet.servers.values() if server.is_staying and server.has_labels(facts.spec.server_labels)]
    free = {server.name: server.budget_bytes - _staying_bytes(fleet, server, but=model) for server in fitting}
    for name, count in sorted(stay.items()):
        if name != model:
            _take_off(fleet, name, count, free)
    return sum(left >= facts.resident_bytes for left in free.values())


def _staying_bytes(fleet: Fleet, server: Server, *, but: str) -> int:
    """What is on a server and has to stay there: models with no more replicas than they have to have, and steps."""
    return sum(
        replica.bytes
        for name, replica in server.replicas.items()
        if name != but and replica.state is not ModelState.UNLOADING and (replica.is_step or _is_wanted(fleet, name))
    )


def _is_wanted(fleet: Fleet, name: str) -> bool:
    facts = fleet.models.get(name)
    return facts is not None and 0 < len(fleet.ready_replicas(name)) <= fleet.least_replicas(facts)


def _take_off(fleet: Fleet, name: str, count: int, free: dict[str, int]) -> None:
    """Take off the memory of those replicas of a model that have to stay, and are not counted yet: those that there are, on
    the fullest servers first, so that as much as can be stays free elsewhere."""
    facts = fleet.models.get(name)
    if facts is None or _is_wanted(fleet, name):
        return
    there = sorted((server.name for server, _ in fleet.staying_replicas(name) if server.name in free), key=lambda each: (free[each], each))
    for server in there[:count]:
        free[server] -= fleet.servers[server].replicas[name].bytes
