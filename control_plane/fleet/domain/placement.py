"""On which server a model is loaded, and what has to go for it; asked by `fleet/routing/residency` and the simulator.

Costs are seconds that requests wait longer: until the new copy has served the one that asks, and, for whatever is unloaded,
one load from its tier, as likely as it is asked for again within a horizon. The cheapest server wins; on a server go first
the models that save the least per byte. Who would take the place of what is used far more has to wait, but not for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import expm1, inf
from zlib import crc32

from control_plane.core.model import ModelState
from control_plane.fleet.domain.fleet import NEVER_S, Copy, Fleet, ModelFacts, Server
from control_plane.models.domain.description import ModelSpec


@dataclass(frozen=True, slots=True)
class PlacementLimits:
    """Times are in loads, of the model that they are about, from the tier in which it is: what is right for models that load in 50 ms
    is so for those that take a minute."""

    protected_loads: float = 2.0
    """A copy stays for so many after it became ready, so that no server does nothing but load. More keeps what is used once."""

    horizon_loads: float = 200.0
    """A model that is unloaded costs as much as it is likely to be asked for within so many. With more, requests wait at busier servers
    so that likelier models stay; with fewer, there are more loads."""

    patience_loads: float = 10.0
    """So long after it was first refused for the others' sake a model is loaded whatever that costs them."""

    looked_at: int = 16
    """Servers of a large fleet that are looked at, the same ones for a model as long as the fleet is the same, as their disks may have
    its files; all of them if none of these will do."""

    gain_loads: float = 0.05
    """By so much another copy has to serve sooner than one that is being loaded: with less, each of two requests that come at once has a
    copy loaded for itself. Beside copies that are busy it would come too late (99.1 % instead of 99.6 within 100 ms as models drift)."""

    look_again_loads: float = 0.02
    """For so long nobody asks again for another copy of a model for which it was no use just now: a look at the servers takes up to a few
    milliseconds, and a busy model would ask for one with every request. With more, bursts wait for the copy that they need."""

    stays_in_pool: bool = False
    """Where the pool has no room, servers that are for others will not do either."""

    longest_wait_s: float = inf
    """For the loads before it on its server: what would have to wait longer is refused."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Load it there, once the victims, and whatever is unloading there already, have released their memory."""

    server: str
    victims: tuple[str, ...]
    """In the order in which to unload them: what is missed the least first."""
    ready_s: float
    """When it is expected to be ready, on the clock of `now_s`."""
    expected_s: float
    """From now until it has served one request."""
    cost_s: float
    """The same, what others are expected to wait for what goes, and what it counts that the server is for others."""


class Obstacle(StrEnum):
    """Why a model is not loaded."""

    UNKNOWN = "unknown"
    QUARANTINED = "quarantined"
    ON_TRIAL = "on_trial"
    ENOUGH_COPIES = "enough_copies"
    NO_SERVER = "no_server"
    TOO_LARGE = "too_large"
    IN_USE = "in_use"
    CHURN = "churn"
    LATE = "late"
    NOT_SOONER = "not_sooner"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Not now."""

    obstacle: Obstacle
    text: str
    """For the caller, a sentence without its full stop."""
    retry_after_s: float
    """When it is worth another try."""
    sooner_than_s: float = inf
    """Or as soon as a request would take longer than this where it is."""


# Until a server joins, or somebody changes the model: as good a guess as any.
_LONG_S = 30.0

# Nothing is gained by asking again sooner.
_SOON_S = 0.01

LIMITS = PlacementLimits()


def place(
    fleet: Fleet,
    model: str,
    now_s: float,
    *,
    pool: str | None = None,
    sooner_than_s: float = inf,
    limits: PlacementLimits = LIMITS,
) -> Placement | Refusal:
    """Choose a server for one more copy of the model.

    Give `sooner_than_s` if there is a copy already: how long a request would take there. A new one then has to cost less than that, or to
    bring those who come later within the model's latency objective.
    """
    facts = fleet.models.get(model)
    if facts is None:
        return Refusal(Obstacle.UNKNOWN, f"'{model}' is not known", _LONG_S)
    if facts.quarantined_until_s > now_s:
        return Refusal(Obstacle.QUARANTINED, f"'{model}' failed to load and is not tried again yet", facts.quarantined_until_s - now_s)
    if facts.spec.max_copies is not None and _staying_copies(fleet, model) >= facts.spec.max_copies:
        return Refusal(Obstacle.ENOUGH_COPIES, f"'{model}' has all the copies that it may have", max(facts.service_s, _SOON_S))
    servers = _open_to(fleet, facts, pool if limits.stays_in_pool else None)
    if isinstance(servers, Refusal):
        return servers
    search = _Search(fleet, facts, now_s, limits, pool)
    best = search.best_in_pool(servers) or search.best_elsewhere(servers)
    if best is None and facts.is_on_trial:
        return Refusal(Obstacle.ON_TRIAL, f"'{model}' failed to load, and nothing is unloaded to try it again", _LONG_S)
    if best is None:
        retry_s = min(search.free_in_s(server) for server in servers)
        return Refusal(Obstacle.IN_USE, f"there is no room for '{model}' while all that is loaded is in use or new", retry_s)
    return search.objection(best, sooner_than_s) or best


def surplus(fleet: Fleet, server: Server, now_s: float, *, limits: PlacementLimits = LIMITS) -> tuple[str, ...]:
    """What goes from a server whose models turn out to need more than its budget: all that may, where that is not enough."""
    nothing = ModelFacts(ModelSpec(""), resident_bytes=0, load_s=0.0, service_s=0.0)
    search = _Search(fleet, nothing, now_s, limits)
    victims = search.victims_on(server)
    return tuple(search.may_go(server) if victims is None else victims)


def _staying_copies(fleet: Fleet, model: str) -> int:
    holders = fleet.holders.get(model, {}).values()
    return sum(server.is_up and not server.is_leaving and server.copies[model].state is not ModelState.UNLOADING for server in holders)


def _open_to(fleet: Fleet, facts: ModelFacts, pool: str | None) -> list[Server] | Refusal:
    """Servers that could take it, of the pool."""
    name, labels = facts.name, facts.spec.server_labels
    fitting = [server for server in fleet.servers.values() if server.is_open and server.is_for(pool) and server.has_labels(labels)]
    large_enough = [server for server in fitting if server.budget_bytes >= facts.resident_bytes]
    if fitting and not large_enough:
        return Refusal(Obstacle.TOO_LARGE, f"'{name}' needs {facts.resident_bytes} bytes, more than a server has for models", _LONG_S)
    servers = [server for server in large_enough if name not in server.copies]
    if not servers and any(server.copies[name].state is ModelState.UNLOADING for server in large_enough):
        return Refusal(Obstacle.IN_USE, f"'{name}' is still being unloaded", max(facts.service_s, _SOON_S))
    return servers or Refusal(Obstacle.NO_SERVER, _why_no_server(fleet, facts.spec), _LONG_S)


def _why_no_server(fleet: Fleet, model: ModelSpec) -> str:
    """Labels that no server has at all are told, or, if each is somewhere, that none has all of them."""
    up, wanted = [server for server in fleet.servers.values() if server.is_open], model.server_labels
    if any(server.has_labels(wanted) for server in up) or not wanted:
        return f"no server that could take '{model.name}' is up"
    missing = {key: value for key, value in wanted.items() if not any(server.has_labels({key: value}) for server in up)}
    labels = ", ".join(f"{key}={value}" for key, value in (missing or wanted).items())
    return f"no server that is up has the labels that '{model.name}' needs: {labels}"


def _sample(servers: Sequence[Server], model: str, size: int) -> Iterator[Server]:
    """At most so many, evenly spread, the first of them by the model's name: of equal servers the first is taken."""
    first, step = crc32(model.encode()) % len(servers), max(1.0, len(servers) / size)
    return (servers[(first + int(number * step)) % len(servers)] for number in range(min(size, len(servers))))


class _Search:
    """For one model's place."""

    def __init__(self, fleet: Fleet, facts: ModelFacts, now_s: float, limits: PlacementLimits, pool: str | None = None) -> None:
        self._fleet = fleet
        self._facts = facts
        self._now_s = now_s
        self._limits = limits
        self._pool = pool

    def best_in_pool(self, servers: Sequence[Server]) -> Placement | None:
        return self._best_of_many([server for server in servers if server.is_for(self._pool)])

    def best_elsewhere(self, servers: Sequence[Server]) -> Placement | None:
        return self._best_of_many([server for server in servers if not server.is_for(self._pool)])

    def _best_of_many(self, servers: Sequence[Server]) -> Placement | None:
        if not servers:
            return None
        return self._best_of(_sample(servers, self._facts.name, self._limits.looked_at)) or self._best_of(servers)

    def _best_of(self, servers: Iterable[Server]) -> Placement | None:
        found = (placement for server in servers if (placement := self._on(server)) is not None)
        return min(found, key=lambda placement: placement.cost_s, default=None)

    def objection(self, best: Placement, sooner_than_s: float) -> Refusal | None:
        facts = self._facts
        worth_s = best.cost_s + (self._limits.gain_loads * facts.load_s if self._is_loading() else 0.0)
        if worth_s > sooner_than_s and not self._helps_who_comes_later(best, sooner_than_s):
            return Refusal(Obstacle.NOT_SOONER, f"another copy of '{facts.name}' would not serve sooner", facts.load_s, worth_s)
        late_s = best.ready_s - self._now_s - facts.load_s - self._limits.longest_wait_s
        if late_s > 0:
            return Refusal(Obstacle.LATE, f"too many models wait to be loaded before '{facts.name}'", late_s)
        patience_s = self._patience_s()
        if patience_s > 0 and self._is_churn(best.victims):
            return Refusal(
                Obstacle.CHURN, f"'{facts.name}' would take the place of models that are used far more", max(patience_s, _SOON_S)
            )
        return None

    def _helps_who_comes_later(self, best: Placement, now_takes_s: float) -> bool:
        """Whether requests take longer now than they should, and will not there: then a copy is worth its load also if it comes too late
        for the one that asks.

        What those gain that come during a load must be more than the load itself and what others lose, or each chance queue would be
        worth one. One such load at a time: the next request would ask for another before this could have helped.
        """
        facts, objective_s = self._facts, self._facts.spec.latency_objective_s
        if objective_s is None or now_takes_s <= objective_s or self._is_loading():
            return False
        server = self._fleet.servers[best.server]
        will_take_s = server.work_s / server.parallel + facts.service_s
        gained_s = (now_takes_s - will_take_s) * (1.0 + facts.rate_fast * facts.load_s)
        return will_take_s <= objective_s and gained_s > facts.load_s + best.cost_s - best.expected_s

    def _is_loading(self) -> bool:
        name = self._facts.name
        return any(server.copies[name].state is ModelState.LOADING for server in self._fleet.holders.get(name, {}).values())

    def free_in_s(self, server: Server) -> float:
        """When something there may go at the earliest, as far as can be told."""
        soonest = (self._may_go_in_s(copy) for copy in server.copies.values())
        return max(_SOON_S, min(soonest, default=_LONG_S))

    def _on(self, server: Server) -> Placement | None:
        victims = self.victims_on(server)
        if victims is None:
            return None
        facts, work_s = self._facts, server.work_s / server.parallel
        begins_in_s = max(0.0, server.loads_until_s - self._now_s) if server.serves_while_loading else work_s
        ready_in_s = begins_in_s + facts.load_s
        expected_s = max(ready_in_s, work_s) + facts.service_s
        cost_s = expected_s + server.away_s(self._pool, facts.load_s) + sum(map(self._harm_s, victims))
        return Placement(server.name, tuple(victims), self._now_s + ready_in_s, expected_s, cost_s)

    def victims_on(self, server: Server) -> list[str] | None:
        """The cheapest first; None: all that may go there is not enough."""
        staying = sum(copy.bytes for copy in server.copies.values() if copy.state is not ModelState.UNLOADING)
        missing = staying + self._facts.resident_bytes - server.budget_bytes
        if missing <= 0:
            return []
        if self._facts.is_on_trial:
            return None
        chosen: list[str] = []
        for name in self.may_go(server):
            chosen.append(name)
            missing -= server.copies[name].bytes
            if missing <= 0:
                return _needed(chosen, server, -missing)
        return None

    def may_go(self, server: Server) -> list[str]:
        """Now, the cheapest first."""
        return [name for *_, name in sorted(self._rank(copy) for copy in server.copies.values() if self._may_go_in_s(copy) <= 0.0)]

    def _may_go_in_s(self, copy: Copy) -> float:
        """0: now. It ends what it does, is new for a while, or is to stay."""
        facts = self._fleet.models.get(copy.model)
        if copy.is_step or copy.sequences or self._is_pinned(facts):
            return _LONG_S
        if copy.in_flight or copy.state is ModelState.UNLOADING:
            return _SOON_S if facts is None else max(facts.service_s, _SOON_S)
        protected_s = 0.0 if facts is None else self._limits.protected_loads * facts.load_s
        if copy.state is ModelState.READY:
            return max(0.0, copy.since_s + protected_s - self._now_s)
        return max(_SOON_S, copy.ready_s + protected_s - self._now_s)

    def _is_pinned(self, facts: ModelFacts | None) -> bool:
        if facts is None or not facts.spec.min_copies:
            return False
        holders = self._fleet.holders.get(facts.name, {}).values()
        is_there = any(server.is_up and server.copies[facts.name].state is ModelState.READY for server in holders)
        return is_there and self._fleet.ready_copies(facts.name) <= facts.spec.min_copies  # of an ejected server, too, which may recover

    def _rank(self, copy: Copy) -> tuple[float, int, str]:
        """By seconds of loading that it saves per second and byte."""
        facts = self._fleet.models.get(copy.model)
        if facts is None:
            return (0.0, 0, copy.model)
        return (self._missed_per_s(facts) * facts.load_s / max(copy.bytes, 1), facts.spec.priority, copy.model)

    def _missed_per_s(self, facts: ModelFacts) -> float:
        """At what rate requests would need another load if one copy went.

        Where there are others: as the square of how busy these would be, which is about how often two have to wait for another.
        """
        uses_per_s = facts.uses_per_s(self._now_s)
        if len(self._fleet.holders[facts.name]) == 1:
            return uses_per_s
        others = self._fleet.ready_copies(facts.name) - 1
        return uses_per_s if others <= 0 else uses_per_s * min(1.0, facts.demand(self._now_s) / others) ** 2

    def _harm_s(self, victim: str) -> float:
        """Not less for one that has other copies: dropped that lightly it is soon loaded again, as simulations showed."""
        facts = self._fleet.models.get(victim)
        if facts is None:
            return 0.0
        return -expm1(-facts.uses_per_s(self._now_s) * self._limits.horizon_loads * facts.load_s) * facts.load_s

    def _patience_s(self) -> float:
        """How much longer the model can be refused for the others' sake."""
        whole_s = self._limits.patience_loads * self._facts.load_s
        if self._facts.refused_since_s == NEVER_S:
            return whole_s
        return whole_s - (self._now_s - self._facts.refused_since_s)

    def _is_churn(self, victims: Iterable[str]) -> bool:
        """Whether, in the time that it takes to swap them, the victims are asked for more than the model, in seconds of loading.

        Never so if they are asked for less than once in that time, as the model is asked for now.
        """
        facts, now_s = self._facts, self._now_s
        others = [other for victim in victims if (other := self._fleet.models.get(victim)) is not None]
        lost_s = sum(self._missed_per_s(other) * (facts.load_s + other.load_s) * other.load_s for other in others)
        return lost_s > (1.0 + facts.uses_per_s(now_s) * facts.load_s) * facts.load_s


def _needed(chosen: Sequence[str], server: Server, spare: int) -> list[str]:
    """Without those that can stay now that a larger one goes as well; of these the dearest stay."""
    needed = []
    for name in reversed(chosen):
        if server.copies[name].bytes <= spare:
            spare -= server.copies[name].bytes
        else:
            needed.append(name)
    return needed[::-1]
