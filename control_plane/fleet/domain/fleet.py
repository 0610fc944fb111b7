"""Servers (Tritons), the models on them, and what is known of each: what placement and routing decide by.

Changed in place by `fleet/fleet_service` and by the simulator as things happen; policies read it and change nothing. Times are the
loop's (monotonic), in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp, inf, sqrt

from control_plane.core.model import ModelState
from control_plane.models.domain.description import ModelSpec, Tier

NEVER_S = float("-inf")


FAST_S = 30.0
"""Over which `rate_fast` is an average: exponential, so what is three times as old hardly counts."""

SLOW_S = 900.0
"""Over which `rate_slow` is one."""

AWAY_LOADS = 2.0
"""A request counts for waiting so many loads of its model longer at a server that is for others: more than a load where it belongs takes,
and less than one for which a model goes that is as good as sure to be loaded again."""

# Shorter idle times say nothing.
_NOW_S = 0.001

_DECAY = (1 / FAST_S + 1 / SLOW_S) / 4


@dataclass(slots=True, eq=False)
class ModelFacts:
    """What is known of a model besides where it is."""

    spec: ModelSpec
    resident_bytes: int
    """As declared, measured, or estimated until it has been loaded once."""
    load_s: float
    """From the tier it is in, as far as it is known."""
    service_s: float
    """One request's, mean."""
    last_used_s: float = NEVER_S
    rate_fast: float = 0.0
    """Requests per second, over the last half minute or so (`fleet/domain/demand`)."""
    rate_slow: float = 0.0
    """The same over the last quarter of an hour."""
    tier: Tier = Tier.WARM
    quarantined_until_s: float = NEVER_S
    """It failed to load, and is not tried again before."""
    is_on_trial: bool = False
    """Its last load failed, and it has never been loaded as it is: nothing is unloaded to try it again."""
    refused_since_s: float = NEVER_S
    """When a request for it was first turned away since it was last loaded; so nobody is for ever (`fleet/domain/placement`)."""

    @property
    def name(self) -> str:
        return self.spec.name

    def uses_per_s(self, now_s: float) -> float:
        """At which rate it is expected to be used next: the geometric mean of how often it has been used, over a short and a long time,
        and of one use in the time for which it has lain idle.

        How often it was used keeps what is over and forgets what is new; idle time alone (LRU) is swept by models that are used
        once. The mean has no constant to be tuned to a trace.
        """
        if self.rate_fast <= 0.0:
            return 0.0
        idle_s = max(now_s - self.last_used_s, _NOW_S)
        # Both rates have decayed since the last use.
        return exp(-idle_s * _DECAY) * sqrt(sqrt(self.rate_fast * self.rate_slow) / idle_s)

    def demand(self, now_s: float) -> float:
        """Servers that its requests keep busy, as measured over the short time."""
        return self.rate_fast * exp(-max(0.0, now_s - self.last_used_s) / FAST_S) * self.service_s


@dataclass(slots=True, eq=False)
class Copy:
    """A model on a server: loading, ready, or unloading (its memory is not free yet)."""

    model: str
    state: ModelState
    bytes: int
    since_s: float
    """When it came into this state."""
    ready_s: float = NEVER_S
    """While it loads: when it is expected to be ready."""
    last_used_s: float = NEVER_S
    in_flight: int = 0
    """Requests that are there, and those that wait for its load."""
    in_flight_elsewhere: int = 0
    """Of these, other processes', as they last told."""
    sequences: int = 0
    """Under way: their state is in this copy and nowhere else."""
    is_step: bool = False
    """An ensemble that is there needs it; its bytes are among the ensemble's."""


@dataclass(slots=True, eq=False)
class Server:
    """One Triton."""

    name: str
    budget_bytes: int
    """For models; what Triton itself takes is not in it."""
    pool: str = ""
    """Empty: it is for whatever comes."""
    labels: Mapping[str, str] = field(default_factory=dict)
    is_up: bool = True
    is_ejected: bool = False
    """It answers too slowly or with errors (`fleet/domain/outliers`), and gets no requests but probes."""
    is_leaving: bool = False
    """It gets no new requests and no models: those that are there end, sequences too, and then it goes."""
    probe_from_s: float = inf
    """While it is ejected: one request that comes from then on is sent there to see whether it has recovered."""
    copies: dict[str, Copy] = field(default_factory=dict)
    work_s: float = 0.0
    """Expected seconds of service of the requests that are there, as if it did one at a time."""
    parallel: int = 1
    """Requests that it serves at a time without slowing each other down."""
    loads_until_s: float = NEVER_S
    """When the loads that are under way or wait there are expected to have ended; it does one at a time."""
    serves_while_loading: bool = True
    """Else requests that come to it wait for the loads before them, which are part of `work_s`: a machine with no cores to spare."""

    def has_labels(self, labels: Mapping[str, str]) -> bool:
        """All of them, with the same values."""
        return labels.items() <= self.labels.items()

    def is_for(self, pool: str | None) -> bool:
        """Whether requests that go to this pool are at the right place; None: all servers are for them."""
        return pool is None or self.pool in ("", pool)

    def away_s(self, pool: str | None, load_s: float) -> float:
        """For how much longer than it does a request that goes to this pool counts for waiting here."""
        return 0.0 if self.is_for(pool) else AWAY_LOADS * load_s

    @property
    def is_open(self) -> bool:
        """For new requests, and for models."""
        return self.is_up and not self.is_leaving and not self.is_ejected

    @property
    def held_bytes(self) -> int:
        """Of everything that is loaded, loads or is not gone yet."""
        return sum(copy.bytes for copy in self.copies.values())

    @property
    def free_bytes(self) -> int:
        return self.budget_bytes - self.held_bytes


@dataclass(slots=True, eq=False)
class Fleet:
    """All of it."""

    servers: dict[str, Server] = field(default_factory=dict)
    models: dict[str, ModelFacts] = field(default_factory=dict)
    holders: dict[str, dict[str, Server]] = field(default_factory=dict)
    """By model, the servers that have a copy in whatever state, by name: no request looks through all servers."""
    pools: dict[str, dict[str, Server]] = field(default_factory=dict)
    """By pool, its servers by name, for the same reason."""

    def ready_copies(self, model: str) -> int:
        """That serve now."""
        holders = self.holders.get(model, {}).values()
        return sum(server.is_open and server.copies[model].state is ModelState.READY for server in holders)

    def add_server(self, server: Server) -> None:
        """It joins, with the copies that it has; one of the same name is replaced."""
        self.remove_server(server.name)
        self.servers[server.name] = server
        self.pools.setdefault(server.pool, {})[server.name] = server
        for model in server.copies:
            self.holders.setdefault(model, {})[server.name] = server

    def remove_server(self, name: str) -> None:
        """It leaves, and its copies with it; nothing happens if it is not there."""
        server = self.servers.pop(name, None)
        if server is None:
            return
        for model in server.copies:
            self._forget(model, name)
        for pool in [pool for pool, servers in self.pools.items() if name in servers]:  # it may say by now that it is for another
            _remove(self.pools, pool, name)

    def put_copy(self, server: Server, copy: Copy) -> None:
        """It is there from now on, in place of one of the same model."""
        server.copies[copy.model] = copy
        self.holders.setdefault(copy.model, {})[server.name] = server

    def drop_copy(self, server: Server, model: str) -> None:
        """It is gone, and its memory is free; nothing happens if it is not there."""
        if server.copies.pop(model, None) is not None:
            self._forget(model, server.name)

    def open_pools(self) -> list[str]:
        """Those that have a server for new requests."""
        return [pool for pool, servers in self.pools.items() if any(server.is_open for server in servers.values())]

    def _forget(self, model: str, server_name: str) -> None:
        _remove(self.holders, model, server_name)


def _remove(by_key: dict[str, dict[str, Server]], key: str, server_name: str) -> None:
    servers = by_key.get(key, {})
    servers.pop(server_name, None)
    if not servers:
        by_key.pop(key, None)
