"""Loads that requests ask for, behind negative caches.

While there is no room for a model, not every request for it searches the servers.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

from control_plane.fleet.domain.fleet import NEVER_S, ModelFacts
from control_plane.fleet.domain.placement.limits import LIMITS, SOON_S
from control_plane.fleet.domain.placement.placement import Obstacle, Refusal
from control_plane.fleet.loading.replica_loader import ReplicaLoader
from control_plane.fleet.view.state import FleetState

_REST = 4.0
"""Time for which a search in vain holds, in times that it took: thousands may wait for a model while all that is loaded is in
use, and each asks again whenever any request ends."""
_MOST_LATE = 2
"""Loads of a model that take longer than expected before no further one begins beside them: one that hangs may do so for its
server's sake, two for the model's, which would take up one server after the other."""
_MOST_KNOWN = 1000
"""Refusals that are kept; at more all are dropped, as none holds for long."""


@dataclass(slots=True)
class _InVain:
    """Search for room in vain."""

    until_s: float
    """When to search again."""
    refusal: Refusal
    room_changes: int
    """`FleetState.room_changes` when it began."""
    is_looked_after: bool = False
    """Whether those who wait for room are woken when it is time to search again."""


class LoadRequests:
    """Negative caches of the loads that requests ask for, in front of the `ReplicaLoader`."""

    def __init__(self, state: FleetState, loads: ReplicaLoader) -> None:
        self._state = state
        self._loads = loads
        self._no_room: dict[str, tuple[float, Refusal]] = {}
        """Model on trial -> (when to search for room again, the last refusal)."""
        self._in_vain: dict[tuple[str, str | None], _InVain] = {}
        """(model, pool) -> the last search."""
        self._no_further_replica: dict[str, tuple[float, float]] = {}
        """Model -> (when to ask again for one more replica, the expected wait above which one would help even before that)."""

    def begin(self, facts: ModelFacts, pool: str | None = None) -> Refusal | None:
        """Begin a load; returns why it cannot begin, or None if it has. Of many that ask at once, one searches."""
        key, began_s = (facts.name, pool), self._state.now_s()
        known = self._in_vain.pop(key, None)
        if known is None or began_s >= known.until_s:
            room_changes = self._state.room_changes
            refusal = self._loads.load_replica(facts, pool=pool)
            if refusal is None:
                return None
            self._state.measurements.begin_refusals(facts)
            ended_s = self._state.now_s()
            known = _InVain(ended_s + min(_REST * (ended_s - began_s), SOON_S), refusal, room_changes)
        elif known.room_changes != self._state.room_changes and not known.is_looked_after:
            # Who was woken by that has the old answer now, and nothing else may wake it before the next tick.
            known.is_looked_after = True
            asyncio.get_running_loop().call_later(known.until_s - began_s, self._wake, known)
        if len(self._in_vain) >= _MOST_KNOWN:
            self._in_vain.clear()
        self._in_vain[key] = known
        return known.refusal

    def _wake(self, search: _InVain) -> None:
        """Wake those who wait for room. Should the timer have fired early, by its milliseconds, they are woken once more."""
        search.is_looked_after = False
        self._state.released()

    def begin_unless_in_vain(self, facts: ModelFacts, pool: str | None) -> Refusal | None:
        """Begin a load as `begin` does, of a model whose last load has failed."""
        until_s, refusal = self._no_room.get(facts.name, (NEVER_S, None))
        if refusal is None or self._state.now_s() >= until_s:
            refusal = self.begin(facts, pool)
            if refusal is not None and refusal.obstacle is Obstacle.ON_TRIAL:
                self._no_room[facts.name] = self._state.now_s() + LIMITS.negative_cache_loads * facts.load_s, refusal
            else:
                self._no_room.pop(facts.name, None)
        return refusal

    def one_more(self, facts: ModelFacts, *, must_beat_s: float, pool: str | None = None) -> bool:
        """Load one more replica if a request would be served sooner there; also beside one that is being
        loaded, since a burst cannot wait, but not beside several that are late."""
        now_s = self._state.now_s()
        if sum(replica.ready_s < now_s for replica in self._state.fleet.loading_replicas(facts.name)) >= _MOST_LATE:
            return False
        # The negative cache holds until its time is over, unless this request would wait longer than a new
        # replica costs.
        before_s, unless_longer_than_s = self._no_further_replica.get(facts.name, (now_s, math.inf))
        if now_s < before_s and must_beat_s <= unless_longer_than_s:
            return False
        refusal = self._loads.load_replica(facts, must_beat_s=must_beat_s, pool=pool)
        if refusal is not None:
            self._no_further_replica[facts.name] = now_s + LIMITS.negative_cache_loads * facts.load_s, refusal.must_beat_s
        return refusal is None
