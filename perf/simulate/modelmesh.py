"""KServe ModelMesh's rules (ModelMesh.java, archived): the nearest of kin among what is published, as far as a model can tell.

Its constants are for models that load in seconds and fleets that live for days. A trace of a minute with loads of 50 ms would
never see most of them, so all its times can be scaled: 1 is as published.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import inf
from random import Random

from control_plane.core.model import ModelState
from control_plane.fleet.domain.fleet import Fleet, Replica, Server
from control_plane.fleet.simulation.router import LoadReplica, RefuseRequest, SendRequest, UnloadReplica
from control_plane.fleet.simulation.workload import Request
from perf.simulate.baselines import least_recently_used

CHURN_AGE_S = 30.0
"""10 times the least of its load time-outs, 3 s."""
RATE_CHECK_S = 10.0
SECOND_COPY_WINDOW_S = 7 * 60.0, 40 * 60.0
SETTLED_AFTER_LOAD_S = 30 * 60.0
OLDEST_WITHIN_S, OLDEST_WITHIN_PART = 45.0, 0.1

REQUESTS_PER_MINUTE_OF_REPLICA = 2000
MOST_ADDED = 2
FULL_PART = 0.95
BUSY_RATIO = 2.0
"""Between its 1.1 for what was just used and its 4 for what was not in a long time."""


class ModelMesh:
    """Distributed LRU with a churn guard."""

    def __init__(self, random: Random, scale: float = 1.0) -> None:
        self.tick_s: float | None = RATE_CHECK_S * scale
        self.requests_may_move = False
        self._random, self._scale = random, scale
        self._counts: Counter[str] = Counter()
        self._used_before: dict[str, float] = {}

    def choose(self, request: Request, fleet: Fleet, now_s: float) -> SendRequest | RefuseRequest:
        self._counts[request.model] += 1
        replicas = [
            (replica.state is not ModelState.READY, replica.in_flight, replica.last_used_s, name)
            for name, server in fleet.holders.get(request.model, {}).items()
            if (replica := server.replicas[request.model]).state is not ModelState.UNLOADING
        ]
        server = min(replicas)[-1] if replicas else self._place(request.model, fleet, now_s)
        return SendRequest(server) if server is not None else RefuseRequest()

    def _place(self, model: str, fleet: Fleet, now_s: float) -> str | None:
        needed = fleet.models[model].resident_bytes
        servers = [server for server in fleet.servers.values() if model not in server.replicas]
        roomy = [server for server in servers if self._planned_bytes(server, fleet) + needed <= server.budget_bytes]
        shortlist = roomy or self._with_the_oldest(servers, now_s)
        if not shortlist:
            return None
        least_s = min(server.work_s for server in shortlist)
        typical_s = fleet.models[model].service_s
        idle = [server for server in shortlist if server.work_s <= BUSY_RATIO * max(least_s, typical_s)]
        return self._random.choice(idle).name

    def _planned_bytes(self, server: Server, fleet: Fleet) -> int:
        return sum(
            fleet.models[name].resident_bytes for name, replica in server.replicas.items() if replica.state is not ModelState.UNLOADING
        )

    def _with_the_oldest(self, servers: Sequence[Server], now_s: float) -> list[Server]:
        """Return the servers whose least recently used model is about as old as the oldest, if that is old enough not to churn."""
        ages = {server.name: now_s - min((replica.last_used_s for replica in _ready(server)), default=now_s) for server in servers}
        oldest_s = max(ages.values(), default=-inf)
        within_s = max(OLDEST_WITHIN_S * self._scale, OLDEST_WITHIN_PART * oldest_s)
        return [server for server in servers if oldest_s - ages[server.name] <= within_s and ages[server.name] >= CHURN_AGE_S * self._scale]

    def victims(self, model: str, server: str, fleet: Fleet, now_s: float) -> Sequence[str] | None:
        return least_recently_used(fleet.servers[server], fleet.models[model].resident_bytes)

    def tick(self, fleet: Fleet, now_s: float) -> Iterable[LoadReplica | UnloadReplica]:
        """More and fewer replicas, by the rate since the last time."""
        is_full = sum(server.held_bytes for server in fleet.servers.values()) >= FULL_PART * sum(
            server.budget_bytes for server in fleet.servers.values()
        )
        minutes = RATE_CHECK_S * self._scale / 60
        counts, self._counts = self._counts, Counter()
        for model, replicas in _replicas_by_model(fleet).items():
            yield from self._more(model, replicas, counts[model] / minutes, fleet, is_full, now_s)
            yield from self._fewer(model, replicas, counts[model] / minutes, is_full, now_s)
        self._used_before = {name: facts.last_used_s for name, facts in fleet.models.items() if facts.last_used_s >= 0}

    def _more(
        self, model: str, replicas: dict[str, Replica], per_minute: float, fleet: Fleet, is_full: bool, now_s: float
    ) -> Iterable[LoadReplica]:
        wanted = 0
        if per_minute > REQUESTS_PER_MINUTE_OF_REPLICA * len(replicas):
            wanted = min(MOST_ADDED, int(per_minute / REQUESTS_PER_MINUTE_OF_REPLICA), max(1, len(fleet.servers) // 3))
        elif len(replicas) == 1 and not is_full:
            gap_s = fleet.models[model].last_used_s - self._used_before.get(model, inf)
            wanted = int(SECOND_COPY_WINDOW_S[0] * self._scale <= gap_s <= SECOND_COPY_WINDOW_S[1] * self._scale)
        if any(replica.state is ModelState.LOADING for replica in replicas.values()):
            return  # A recent load has not settled.
        for _ in range(wanted):
            name = self._place(model, fleet, now_s)
            if name is not None:
                yield LoadReplica(model, name)

    def _fewer(self, model: str, replicas: dict[str, Replica], per_minute: float, is_full: bool, now_s: float) -> Iterable[UnloadReplica]:
        ready = {name: replica for name, replica in replicas.items() if replica.state is ModelState.READY}
        if not is_full or len(ready) < 2 or per_minute >= 2 / 3 * REQUESTS_PER_MINUTE_OF_REPLICA * len(replicas):
            return
        if now_s - max(replica.since_s for replica in ready.values()) < SETTLED_AFTER_LOAD_S * self._scale:
            return
        yield UnloadReplica(model, min(ready, key=lambda name: ready[name].last_used_s))


def _ready(server: Server) -> list[Replica]:
    return [replica for replica in server.replicas.values() if replica.state is ModelState.READY]


def _replicas_by_model(fleet: Fleet) -> dict[str, dict[str, Replica]]:
    """Return each model's replicas by server, without those that go."""
    found: dict[str, dict[str, Replica]] = {}
    for server in fleet.servers.values():
        for replica in server.replicas.values():
            if replica.state is not ModelState.UNLOADING:
                found.setdefault(replica.model, {})[server.name] = replica
    return found
