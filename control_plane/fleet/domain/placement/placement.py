"""Placement and eviction policy: on which server a model is loaded, and which models are evicted for it.

`fleet/routing/model_router` and the simulator call it. A cost is the number of seconds that requests wait longer: until the new
replica has served the request that needs it, plus, for each evicted model, the duration of its load times the probability that
it is requested again within a horizon. The cheapest server wins; on a server the models that save the least waiting per byte
are evicted first. A model that would displace others with far more use has to wait, but not indefinitely.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from zlib import crc32

from control_plane.core.model import ModelState
from control_plane.fleet.domain.fleet import NEVER_S, Fleet, ModelFacts, Server
from control_plane.fleet.domain.placement.eviction import Eviction
from control_plane.fleet.domain.placement.limits import LIMITS, LONG_S, SOON_S, PlacementLimits
from control_plane.models.domain.description import ModelSpec


@dataclass(frozen=True, slots=True)
class Placement:
    """Decision to load a model on a server, once the victims and whatever is unloading there have released
    their memory."""

    server: str
    victims: tuple[str, ...]
    """Models to evict, in the order in which to unload them: those that are missed the least first."""
    ready_s: float
    """When the replica is expected to be ready, on the clock of `now_s`."""
    expected_s: float
    """Seconds from now until the replica has served one request."""
    cost_s: float
    """`expected_s`, plus the expected waits of others for what is evicted, plus the penalty for a server of
    another pool."""


class Obstacle(StrEnum):
    """Reason for which a model is not loaded."""

    UNKNOWN = "unknown"
    QUARANTINED = "quarantined"
    ON_TRIAL = "on_trial"
    ENOUGH_REPLICAS = "enough_replicas"
    NO_SERVER = "no_server"
    TOO_LARGE = "too_large"
    IN_USE = "in_use"
    CHURN = "churn"
    LATE = "late"
    NOT_SOONER = "not_sooner"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Decision not to load the model now, with the reason and when to ask again."""

    obstacle: Obstacle
    text: str
    """Reason for the caller, as a sentence without its full stop."""
    retry_after_s: float
    """Seconds after which another try may succeed."""
    must_beat_s: float = inf
    """Another try may also succeed as soon as a request would take longer than this where the model is loaded
    already."""


def place(
    fleet: Fleet,
    model: str,
    now_s: float,
    *,
    pool: str | None = None,
    must_beat_s: float = inf,
    limits: PlacementLimits = LIMITS,
) -> Placement | Refusal:
    """Choose a server for one more replica of the model, and the models to evict there.

    If there is a replica already, give the time a request would take at it as `must_beat_s`. A new replica
    then has to cost less than that, or bring later requests within the model's latency objective.
    """
    facts = fleet.models.get(model)
    if facts is None:
        return Refusal(Obstacle.UNKNOWN, f"'{model}' is not known", LONG_S)
    if facts.quarantined_until_s > now_s:
        return Refusal(Obstacle.QUARANTINED, f"'{model}' failed to load and is not tried again yet", facts.quarantined_until_s - now_s)
    if _has_enough_replicas(fleet, facts):
        return Refusal(Obstacle.ENOUGH_REPLICAS, f"'{model}' has all the replicas that it may have", max(facts.service_s, SOON_S))
    servers = _open_to(fleet, facts, pool if limits.stays_in_pool else None)
    if isinstance(servers, Refusal):
        return servers
    search = _Search(fleet, facts, now_s, limits, pool)
    best = search.best(servers)
    # A model on trial is placed only where memory is free, or on one more server.
    if best is None and facts.is_on_trial:
        return Refusal(Obstacle.ON_TRIAL, f"'{model}' failed to load, and nothing is unloaded to try it again", LONG_S)
    if best is None:
        eviction = Eviction(fleet, now_s, limits)
        retry_s = min(eviction.free_in_s(server) for server in servers)
        return Refusal(Obstacle.IN_USE, f"there is no room for '{model}' while all that is loaded is in use or new", retry_s)
    return search.objection(best, must_beat_s) or best


def victims_on(fleet: Fleet, server: Server, model: str, now_s: float, *, limits: PlacementLimits = LIMITS) -> tuple[str, ...] | None:
    """Choose the models to evict for a load that was announced on the server before, now that its turn has
    come: other loads may have run since. None if the model would not be placed there any more."""
    facts = fleet.models.get(model)
    if facts is None or facts.quarantined_until_s > now_s or _has_enough_replicas(fleet, facts, but_on=server):
        return None
    if not _is_open_to(server, facts) or server.budget_bytes < facts.resident_bytes:
        return None
    search = _Search(fleet, facts, now_s, limits)
    found = search.on(server)
    return None if found is None or search.objection(found, inf) is not None else found.victims


def excess(fleet: Fleet, server: Server, now_s: float, *, limits: PlacementLimits = LIMITS) -> tuple[str, ...]:
    """Return the models to evict from a server that holds more than its budget; all evictable ones, if even
    those are not enough."""
    # A search for a model of no bytes finds exactly what is missing now.
    nothing = ModelFacts(ModelSpec(""), resident_bytes=0, load_s=0.0, service_s=0.0)
    eviction = Eviction(fleet, now_s, limits)
    victims = eviction.victims_on(server, nothing)
    return tuple(eviction.may_go(server) if victims is None else victims)


def _has_enough_replicas(fleet: Fleet, facts: ModelFacts, *, but_on: Server | None = None) -> bool:
    """Whether the model has all the replicas that it may have, without the one on `but_on`."""
    most = facts.spec.max_replicas
    return most is not None and sum(server is not but_on for server, _ in fleet.staying_replicas(facts.name)) >= most


def _is_open_to(server: Server, facts: ModelFacts) -> bool:
    return server.is_open and server.has_labels(facts.spec.server_labels)


def _open_to(fleet: Fleet, facts: ModelFacts, pool: str | None) -> list[Server] | Refusal:
    """Servers of the pool that could take the model, or why there is none."""
    name = facts.name
    fitting = [server for server in fleet.servers.values() if server.is_for(pool) and _is_open_to(server, facts)]
    large_enough = [server for server in fitting if server.budget_bytes >= facts.resident_bytes]
    if fitting and not large_enough:
        return Refusal(Obstacle.TOO_LARGE, f"'{name}' needs {facts.resident_bytes} bytes, more than a server has for models", LONG_S)
    servers = [server for server in large_enough if name not in server.replicas]
    if not servers and any(server.replicas[name].state is ModelState.UNLOADING for server in large_enough):
        return Refusal(Obstacle.IN_USE, f"'{name}' is still being unloaded", max(facts.service_s, SOON_S))
    return servers or Refusal(Obstacle.NO_SERVER, _why_no_server(fleet, facts.spec), LONG_S)


def _why_no_server(fleet: Fleet, model: ModelSpec) -> str:
    """Name the labels that no server has at all, or, if each is somewhere, say that no server has all of
    them."""
    up, wanted = [server for server in fleet.servers.values() if server.is_open], model.server_labels
    if any(server.has_labels(wanted) for server in up) or not wanted:
        return f"no server that could take '{model.name}' is up"
    missing = {key: value for key, value in wanted.items() if not any(server.has_labels({key: value}) for server in up)}
    labels = ", ".join(f"{key}={value}" for key, value in (missing or wanted).items())
    return f"no server that is up has the labels that '{model.name}' needs: {labels}"


def _sample(servers: Sequence[Server], model: str, size: int) -> Iterator[Server]:
    """At most `size` servers, evenly spread. The model's name decides which comes first, and of servers that
    cost the same the first wins: so a model comes back to the same servers, and different models spread."""
    first, step = crc32(model.encode()) % len(servers), max(1.0, len(servers) / size)
    return (servers[(first + int(number * step)) % len(servers)] for number in range(min(size, len(servers))))


class _Search:
    """Search for the best server for one model."""

    def __init__(self, fleet: Fleet, facts: ModelFacts, now_s: float, limits: PlacementLimits, pool: str | None = None) -> None:
        self._fleet = fleet
        self._facts = facts
        self._now_s = now_s
        self._limits = limits
        self._pool = pool
        self._eviction = Eviction(fleet, now_s, limits)

    def best(self, servers: Sequence[Server]) -> Placement | None:
        """The best placement in the pool, else elsewhere; on servers where the load may well fail, if there is no other."""
        well = [server for server in servers if not self._may_fail_on(server)]
        found = self._best_by_pool(well)
        return found if found is not None or len(well) == len(servers) else self._best_by_pool(servers)

    def _best_by_pool(self, servers: Sequence[Server]) -> Placement | None:
        own = [server for server in servers if server.is_for(self._pool)]
        return self._best_of_many(own) or self._best_of_many([server for server in servers if not server.is_for(self._pool)])

    def _may_fail_on(self, server: Server) -> bool:
        """Whether the load has lately failed there, or loads of several models have."""
        if not server.failed_s:
            return False
        limits, since_s = self._limits, self._now_s - self._limits.avoids_failed_s
        is_sick = len(server.failed_only_here) >= limits.sick_from and next(reversed(server.failed_s.values())) > since_s
        return is_sick or server.failed_s.get(self._facts.name, NEVER_S) > since_s

    def _best_of_many(self, servers: Sequence[Server]) -> Placement | None:
        if not servers:
            return None
        # Searching all of a large fleet takes milliseconds, so that is done only if the sample has no place.
        return self._best_of(_sample(servers, self._facts.name, self._limits.sample_size)) or self._best_of(servers)

    def _best_of(self, servers: Iterable[Server]) -> Placement | None:
        found = (placement for server in servers if (placement := self.on(server)) is not None)
        return min(found, key=lambda placement: placement.cost_s, default=None)

    def objection(self, best: Placement, must_beat_s: float) -> Refusal | None:
        """Why the best placement should not be carried out; None if it should."""
        facts = self._facts
        worth_s = best.cost_s + (self._limits.min_gain_loads * facts.load_s if self._fleet.is_loading(facts.name) else 0.0)
        if worth_s > must_beat_s and not self._helps_who_comes_later(best, must_beat_s):
            return Refusal(Obstacle.NOT_SOONER, f"another replica of '{facts.name}' would not serve sooner", facts.load_s, worth_s)
        late_s = best.ready_s - self._now_s - facts.load_s - self._limits.longest_wait_s
        if late_s > 0:
            return Refusal(Obstacle.LATE, f"too many models wait to be loaded before '{facts.name}'", late_s)
        patience_s = self._refusable_for_s()
        if patience_s > 0 and self._is_churn(best.victims):
            return Refusal(Obstacle.CHURN, f"'{facts.name}' would take the place of models that are used far more", max(patience_s, SOON_S))
        return None

    def _helps_who_comes_later(self, best: Placement, now_takes_s: float) -> bool:
        """Whether requests take longer than the latency objective now and would not on the new replica, so
        that it is worth its load even if it comes too late for the request that asks.

        The requests that arrive during a load must gain more than the load itself and what other models lose,
        or each chance queue would load a replica. One such load at a time: the next request would ask for
        another before this one could have helped.
        """
        facts, objective_s = self._facts, self._facts.spec.latency_objective_s
        if objective_s is None or now_takes_s <= objective_s or self._fleet.is_loading(facts.name):
            return False
        server = self._fleet.servers[best.server]
        will_take_s = server.work_s / server.parallel + facts.service_s
        gained_s = (now_takes_s - will_take_s) * (1.0 + facts.rate_fast * facts.load_s)
        return will_take_s <= objective_s and gained_s > facts.load_s + best.cost_s - best.expected_s

    def on(self, server: Server) -> Placement | None:
        """The placement on this server with its cost, or None if there is no room."""
        victims = self._eviction.victims_on(server, self._facts)
        if victims is None:
            return None
        facts, work_s = self._facts, server.work_s / server.parallel
        # A machine that does not serve while it loads has its queue of loads in `work_s`.
        begins_in_s = max(0.0, server.loads_until_s - self._now_s) if server.serves_while_loading else work_s
        ready_in_s = begins_in_s + facts.load_s
        expected_s = max(ready_in_s, work_s) + facts.service_s
        # All terms are seconds that somebody waits, so that they can be added.
        cost_s = expected_s + server.off_pool_penalty_s(self._pool, facts.load_s) + sum(map(self._eviction.harm_s, victims))
        return Placement(server.name, tuple(victims), self._now_s + ready_in_s, expected_s, cost_s)

    def _refusable_for_s(self) -> float:
        """How much longer the model may be refused for the sake of others."""
        whole_s = self._limits.patience_loads * self._facts.load_s
        if self._facts.refused_since_s == NEVER_S:
            return whole_s
        return whole_s - (self._now_s - self._facts.refused_since_s)

    def _is_churn(self, victims: Iterable[str]) -> bool:
        """Whether the swap costs more than it brings: during the time it takes, the victims are asked for
        more than the model, in seconds of loading.

        Never so if the victims are asked for less than once in that time: the model is asked for once, just
        now.
        """
        facts, now_s = self._facts, self._now_s
        others = [other for victim in victims if (other := self._fleet.models.get(victim)) is not None]
        lost_s = sum(self._eviction.missed_per_s(other) * (facts.load_s + other.load_s) * other.load_s for other in others)
        return lost_s > (1.0 + facts.uses_per_s(now_s) * facts.load_s) * facts.load_s
