"""What `fleet/routing/residency` and `fleet/reconciler` decide, by the same policies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from random import Random

from control_plane.core.model import ModelState
from control_plane.fleet.domain.copies import copy_to_drop, wanted_copies
from control_plane.fleet.domain.fleet import NEVER_S, Fleet
from control_plane.fleet.domain.placement import LIMITS, Placement, PlacementLimits, place
from control_plane.fleet.domain.routing import RoutingLimits, choose
from control_plane.fleet.simulation.router import Choice, Load, Refusal, Unload
from control_plane.fleet.simulation.workload import Request


class Ours:
    """The copy that is expected to have served the request first; a load where there is none, or where it is sooner."""

    tick_s: float | None = 0.5
    """As the reconciler's."""
    requests_may_move = True

    def __init__(
        self,
        random: Random,
        *,
        routing_limits: RoutingLimits | None = None,
        placement_limits: PlacementLimits | None = None,
    ) -> None:
        self._random = random
        self._routing_limits = routing_limits or RoutingLimits()
        self._placement_limits = placement_limits or LIMITS
        self._no_copy: dict[str, tuple[float, float]] = {}
        """As in `Residency`."""

    def choose(self, request: Request, fleet: Fleet, now_s: float) -> Choice | Refusal:
        model = request.model
        found = choose(fleet, model, now_s, self._random.random(), limits=self._routing_limits)
        before_s, unless_longer_than_s = self._no_copy.get(model, (now_s, inf))
        if found.asks_to_place and (found.server is None or now_s >= before_s or found.expected_s > unless_longer_than_s):
            placed = place(fleet, model, now_s, sooner_than_s=found.expected_s, limits=self._placement_limits)
            if isinstance(placed, Placement):
                return Choice(placed.server)
            if found.server is None:
                return self._turned_away(fleet, model, now_s, placed.retry_after_s)
            until_s = now_s + self._placement_limits.look_again_loads * fleet.models[model].load_s
            self._no_copy[model] = until_s, placed.sooner_than_s
        assert found.server is not None  # Else it asks to place.
        return Choice(found.server)

    def _turned_away(self, fleet: Fleet, model: str, now_s: float, retry_after_s: float) -> Refusal:
        """It waits for its turn, as long as its deadline allows."""
        facts = fleet.models[model]
        if facts.refused_since_s == NEVER_S:
            facts.refused_since_s = now_s
        return Refusal(retry_after_s)

    def victims(self, model: str, server: str, fleet: Fleet, now_s: float) -> Sequence[str] | None:
        """Of placing it on this server, as if it had not been announced there."""
        announced = fleet.servers[server]
        copy = announced.copies[model]
        fleet.drop_copy(announced, model)
        alone = Fleet({server: announced}, fleet.models, fleet.holders)
        placed = place(alone, model, now_s, limits=self._placement_limits)
        fleet.put_copy(announced, copy)
        return placed.victims if isinstance(placed, Placement) else None

    def tick(self, fleet: Fleet, now_s: float) -> Iterable[Load | Unload]:
        """As many copies as demand asks for, one more or less at a time."""
        for facts in list(fleet.models.values()):
            have, wanted = _copies(fleet, facts.name), wanted_copies(facts, fleet, now_s)
            if have < wanted and not _is_loading(fleet, facts.name):
                placed = place(fleet, facts.name, now_s, limits=self._placement_limits)
                if isinstance(placed, Placement):
                    yield Load(facts.name, placed.server)
            elif have > wanted and (server := copy_to_drop(facts, fleet, now_s)) is not None:
                yield Unload(facts.name, server)


def _is_loading(fleet: Fleet, model: str) -> bool:
    return any(server.copies[model].state is ModelState.LOADING for server in fleet.holders.get(model, {}).values())


def _copies(fleet: Fleet, model: str) -> int:
    holders = fleet.holders.get(model, {})
    return sum(server.is_up and server.copies[model].state is not ModelState.UNLOADING for server in holders.values())
