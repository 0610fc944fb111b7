"""The model of a fleet that policies decide by: its servers (Tritons), its models, and the replicas of models
on servers.

`fleet/view` alone changes it in place as things happen, and the simulator its own; everybody else, and the
policies above all (placement, routing, autoscaling), reads it. Times are seconds of the event loop's
monotonic clock, and come in from outside: nothing here reads a clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp, inf, sqrt

from control_plane.core.model import ModelState
from control_plane.fleet.domain.service_time import DepartureMeter, ServiceClock
from control_plane.models.domain.description import ModelSpec, Tier

NEVER_S = float("-inf")
"""A time before all others: for what has not happened yet."""


FAST_S = 30.0
"""Time constant of the exponential average `ModelFacts.rate_fast`: a use three times as old as this hardly
counts."""

SLOW_S = 900.0
"""Time constant of the exponential average `ModelFacts.rate_slow`."""

OFF_POOL_PENALTY_LOADS = 2.0
"""Penalty for serving a request outside its pool, in load times of its model. It is more than a load inside
the pool takes, so a free server of the pool is preferred; it is less than unloading, inside the pool, a model
that is almost sure to be loaded again."""

# Shorter idle times are noise, and zero would divide by zero.
_NOW_S = 0.001

# The geometric mean in `uses_per_s` takes the fourth root of the product of both rates' decays.
_DECAY = (1 / FAST_S + 1 / SLOW_S) / 4


@dataclass(slots=True, eq=False)
class ModelFacts:
    """Facts about a model that placement and routing need: its size, times and state, but not where its
    replicas are."""

    spec: ModelSpec
    resident_bytes: int
    """Memory of one replica: declared, measured, or estimated until the model has been loaded once."""
    load_s: float
    """Expected duration of a load from the tier that the model is in."""
    service_s: float
    """Mean service time of one request."""
    last_used_s: float = NEVER_S
    rate_fast: float = 0.0
    """Requests per second, averaged over about the last half minute (`count_uses`)."""
    rate_slow: float = 0.0
    """Requests per second, averaged over about the last quarter of an hour."""
    tier: Tier = Tier.WARM
    quarantined_until_s: float = NEVER_S
    """The model failed to load; it is not loaded again before this time."""
    is_on_trial: bool = False
    """The last load failed, and these files have never been loaded: no other model is evicted to try them
    again, but where the fault may be the server's."""
    failed_only_on: str = ""
    """The server on which its loads have failed, as far as this process has seen it; empty if there are several."""
    refused_since_s: float = NEVER_S
    """When a request for the model was first refused since its last load. Placement bounds how long refusals
    go on with it (`PlacementLimits.patience_loads`)."""

    @property
    def name(self) -> str:
        return self.spec.name

    def count_uses(self, now_s: float, count: int = 1) -> None:
        """Count `count` requests for the model that arrive now, whether they are served or refused."""
        passed_s = max(0.0, now_s - self.last_used_s)
        # Decay since the last use, plus this use's share: an average that needs no timer and no history.
        self.rate_fast = self.rate_fast * exp(-passed_s / FAST_S) + count / FAST_S
        self.rate_slow = self.rate_slow * exp(-passed_s / SLOW_S) + count / SLOW_S
        self.last_used_s = max(now_s, self.last_used_s)

    def uses_per_s(self, now_s: float) -> float:
        """Expected rate of use from now on: the geometric mean of the measured rate, over a short and a long
        time, and of one use per idle time.

        Frequency alone (LFU) keeps models that are no longer used and is slow to see new ones; idle time
        alone (LRU) is swept by models that are used once. The mean has no constant to be tuned to a trace.
        """
        if self.rate_fast <= 0.0:
            return 0.0
        idle_s = max(now_s - self.last_used_s, _NOW_S)
        # The stored rates are those of the last use; both have decayed since.
        return exp(-idle_s * _DECAY) * sqrt(sqrt(self.rate_fast * self.rate_slow) / idle_s)

    def demand(self, now_s: float) -> float:
        """Offered load over the short time, in servers kept busy (Erlangs): arrival rate times service
        time."""
        return self.rate_fast * exp(-max(0.0, now_s - self.last_used_s) / FAST_S) * self.service_s


@dataclass(slots=True, eq=False)
class Replica:
    """Replica of a model on one server: loading, ready, or unloading (then its memory is not free yet)."""

    model: str
    state: ModelState
    bytes: int
    since_s: float
    """When the replica came into this state."""
    ready_s: float = NEVER_S
    """While the replica loads: when it is expected to be ready."""
    last_used_s: float = NEVER_S
    in_flight: int = 0
    """Requests that the replica is serving or that wait for its load, those of all processes together."""
    in_flight_elsewhere: int = 0
    """The part of `in_flight` that belongs to other processes, by their last reports."""
    sequences: int = 0
    """Sequences under way. Their state is in this replica only, so it must not be unloaded."""
    is_step: bool = False
    """A loaded ensemble needs this model; its bytes are counted with the ensemble's."""
    waiting: dict[int, float] = field(default_factory=dict)
    """Send times of this process's requests that still wait for their answer here, the oldest first."""
    departures: DepartureMeter = field(default_factory=DepartureMeter)
    """Measures, by this process's requests, what one request takes of the server."""
    answered_s: float = NEVER_S
    """When the replica last answered a request of this process."""
    answered_sent_s: float = NEVER_S
    """Send time of the newest request of this process that the replica has answered."""
    longest_s: float = 0.0
    """The longest time that the replica has lately taken for an answer."""
    abandoned_s: float = inf
    """Send time of the oldest request that its caller has given up, unless one that was sent later has been answered."""
    newest_abandoned_s: float = NEVER_S
    """Send time of the newest of them."""
    worked_on_elsewhere_s: float = inf
    """Send time of the oldest request that another process waits for, or has given up, since the last answer to this
    process; as far as this process is told."""
    is_dead: bool = False
    """Its stub has died, and it is to be loaded anew."""
    died_s: float = NEVER_S
    """When this process last heard that its stub had died."""
    revived_s: float = NEVER_S
    """When its stub was last found to live again."""
    has_hung: bool = False
    """Its dead stub was ended, since it computed nothing; it did not die by itself."""
    hangs: bool = False
    """Its load has taken longer than a load may; it may end all the same."""

    def revive(self, now_s: float) -> None:
        """Note that its stub lives; a new one works on nothing yet."""
        if self.is_dead:
            self.is_dead = self.has_hung = False
            self.revived_s = now_s
            self.abandoned_s = self.worked_on_elsewhere_s = inf

    def was_dead_at(self, sent_s: float) -> bool:
        """Whether a request that was sent at `sent_s` came to a stub that was dead already."""
        return self.died_s <= sent_s and (self.is_dead or sent_s < self.revived_s)

    @property
    def is_announced(self) -> bool:
        """Whether the replica is only planned: its load waits for its turn, and Triton does not know of it yet."""
        return self.state is ModelState.LOADING and self.bytes == 0 and not self.is_step


@dataclass(slots=True, eq=False)
class Server:
    """One Triton server of the fleet, with the replicas on it."""

    name: str
    budget_bytes: int
    """Memory for models; what Triton itself takes is not part of it."""
    pool: str = ""
    """The server pool that it belongs to; empty if it takes requests of every kind."""
    labels: Mapping[str, str] = field(default_factory=dict)
    is_up: bool = True
    is_ejected: bool = False
    """Outlier ejection: it answers too slowly or with errors (`fleet/domain/health/outliers`), and gets no requests
    but probes."""
    silent_from_s: float | None = None
    """Since when the server says nothing, although nobody knows it to be down; None: it answers."""
    heard_s: float = NEVER_S
    """When the server's last silence ended. Requests from before that say nothing of how it serves."""
    is_draining: bool = False
    """The server is draining: it gets no new requests and no models, finishes its requests and sequences, and
    then leaves."""
    probe_from_s: float = inf
    """While the server is ejected: the first request after this time is sent to it as a probe, to see whether
    it has recovered."""
    replicas: dict[str, Replica] = field(default_factory=dict)
    work_s: float = 0.0
    """Expected seconds of service of all requests at the server, as if it served one at a time."""
    parallel: int = 1
    """Requests that the server serves at a time without slowing each other down."""
    loads_until_s: float = NEVER_S
    """When the loads that run or wait at the server are expected to have ended; a server loads one model at a
    time."""
    serves_while_loading: bool = True
    """False for a machine with no cores to spare: there requests wait for the loads before them, and loads
    are part of `work_s`."""
    failed_s: dict[str, float] = field(default_factory=dict)
    """Models whose load has lately failed here, and when."""
    failed_only_here: set[str] = field(default_factory=set)
    """Those of them whose load has not failed elsewhere too, since a load has succeeded here."""
    service_clock: ServiceClock = field(default_factory=ServiceClock)
    """Shares the server's time among its busy models, as this process's requests show them."""

    def has_labels(self, labels: Mapping[str, str]) -> bool:
        """Whether the server has all these labels, with the same values."""
        return labels.items() <= self.labels.items()

    def is_for(self, pool: str | None) -> bool:
        """Whether the server takes requests of this pool; a pool of None stands for requests that any server
        may take."""
        return pool is None or self.pool in ("", pool)

    def off_pool_penalty_s(self, pool: str | None, load_s: float) -> float:
        """Penalty, in seconds of waiting, for serving a request of this pool here."""
        return 0.0 if self.is_for(pool) else OFF_POOL_PENALTY_LOADS * load_s

    @property
    def is_open(self) -> bool:
        """Whether the server takes new requests and new models."""
        return self.is_up and not self.is_draining and not self.is_avoided

    @property
    def is_silent(self) -> bool:
        return self.silent_from_s is not None

    @property
    def is_avoided(self) -> bool:
        """Whether requests go to the server only if no other one could serve them."""
        return self.is_ejected or self.is_silent

    @property
    def is_staying(self) -> bool:
        """Whether the server is up and stays in the fleet; it may be ejected or silent."""
        return self.is_up and not self.is_draining

    @property
    def held_bytes(self) -> int:
        """Memory of everything that is loaded, is being loaded, or is not gone yet."""
        return sum(replica.bytes for replica in self.replicas.values())

    @property
    def free_bytes(self) -> int:
        return self.budget_bytes - self.held_bytes


@dataclass(slots=True, eq=False)
class Fleet:
    """The servers and models of a fleet, with indexes by model and by pool."""

    servers: dict[str, Server] = field(default_factory=dict)
    models: dict[str, ModelFacts] = field(default_factory=dict)
    holders: dict[str, dict[str, Server]] = field(default_factory=dict)
    """Index: model -> the servers with a replica in any state, by name. Without it each request would look
    through all servers."""
    pools: dict[str, dict[str, Server]] = field(default_factory=dict)
    """Index: pool -> its servers by name."""
    kept: dict[str, int] = field(default_factory=dict)
    """Ready replicas, by model, that a rollout needs, beside what the model's spec says."""

    def least_replicas(self, facts: ModelFacts) -> int:
        """Return how many replicas of a model there have to be."""
        return max(facts.spec.min_replicas, self.kept.get(facts.name, 0))

    def replicas(self, model: str) -> list[tuple[Server, Replica]]:
        """Return the replicas of a model in any state, each with its server."""
        return [(server, server.replicas[model]) for server in self.holders.get(model, {}).values()]

    def ready_replicas(self, model: str) -> list[tuple[Server, Replica]]:
        """Return the replicas that can serve now, each with its server."""
        found = self.replicas(model)
        return [(server, replica) for server, replica in found if server.is_open and replica.state is ModelState.READY]

    def staying_replicas(self, model: str) -> list[tuple[Server, Replica]]:
        """Return the replicas that are not on their way out, each with its server; those that are being
        loaded are among them, but not the only one whose load hangs."""
        found = self._without_hung(model)
        return [(server, replica) for server, replica in found if server.is_staying and replica.state is not ModelState.UNLOADING]

    def is_loading(self, model: str) -> bool:
        """Whether a replica of the model is being loaded, or waits for its turn to be."""
        return bool(self.loading_replicas(model))

    def loading_replicas(self, model: str) -> list[Replica]:
        """Return the replicas that are being loaded, or wait for their turn to be, but not the only one whose load hangs."""
        return [replica for _, replica in self._without_hung(model) if replica.state is ModelState.LOADING]

    def _without_hung(self, model: str) -> list[tuple[Server, Replica]]:
        """The replicas in any state without the one whose load hangs: that may be its server's fault, so another server
        gets the model. Where two hang it is the model's, which must not take up one server after the other."""
        found = self.replicas(model)
        return [each for each in found if not each[1].hangs] if sum(each.hangs for _, each in found) == 1 else found

    def nearest_tier(self, facts: ModelFacts) -> Tier:
        """Return the nearest tier of a model, as seen from a request: HOT if it is ready on any server."""
        return Tier.HOT if any(replica.state is ModelState.READY for _, replica in self.replicas(facts.name)) else facts.tier

    def add_server(self, server: Server) -> None:
        """Add a server with the replicas on it, in place of one of the same name."""
        # Removed first: a server that comes back in another pool must not stay in the index of the old one.
        self.remove_server(server.name)
        self.servers[server.name] = server
        self.pools.setdefault(server.pool, {})[server.name] = server
        for model in server.replicas:
            self.holders.setdefault(model, {})[server.name] = server

    def remove_server(self, name: str) -> None:
        """Remove a server and its replicas; an unknown name is ignored."""
        server = self.servers.pop(name, None)
        if server is None:
            return
        for model in server.replicas:
            self._forget(model, name)
        # All pools are searched, since `server.pool` may have been changed after the server was added.
        for pool in [pool for pool, servers in self.pools.items() if name in servers]:
            _remove(self.pools, pool, name)

    def put_replica(self, server: Server, replica: Replica) -> None:
        """Add a replica, in place of one of the same model."""
        server.replicas[replica.model] = replica
        self.holders.setdefault(replica.model, {})[server.name] = server

    def drop_replica(self, server: Server, model: str) -> None:
        """Remove a replica, whose memory is free now; a replica that is not there is ignored."""
        if server.replicas.pop(model, None) is not None:
            self._forget(model, server.name)

    def open_pools(self) -> list[str]:
        """The pools with at least one server that takes new requests."""
        return [pool for pool, servers in self.pools.items() if any(server.is_open for server in servers.values())]

    def _forget(self, model: str, server_name: str) -> None:
        _remove(self.holders, model, server_name)


def _remove(by_key: dict[str, dict[str, Server]], key: str, server_name: str) -> None:
    servers = by_key.get(key, {})
    servers.pop(server_name, None)
    # No empty entries: a missing key means that nobody has the model, and `pools` lists only pools with
    # servers.
    if not servers:
        by_key.pop(key, None)
