"""What people use today, each in a few lines: where a request goes, and LRU on each server."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from math import ceil
from random import Random

from control_plane.core.model import ModelState
from control_plane.fleet.domain.fleet import Fleet, Server
from control_plane.fleet.simulation.router import LoadReplica, RefuseRequest, SendRequest, UnloadReplica
from control_plane.fleet.simulation.workload import Request


class LruRouter:
    """Base of routers with which each server keeps the models that it used last; `choose` is missing."""

    tick_s: float | None = None
    requests_may_move = False

    def victims(self, model: str, server: str, fleet: Fleet, now_s: float) -> Sequence[str] | None:
        return least_recently_used(fleet.servers[server], fleet.models[model].resident_bytes)

    def tick(self, fleet: Fleet, now_s: float) -> Iterable[LoadReplica | UnloadReplica]:
        return ()


def least_recently_used(server: Server, needed_bytes: int) -> list[str] | None:
    """Models that make room when they go; None: all that could go is not enough."""
    staying = [replica for replica in server.replicas.values() if replica.state is not ModelState.UNLOADING]
    missing = sum(replica.bytes for replica in staying) + needed_bytes - server.budget_bytes
    victims = []
    for replica in sorted((replica for replica in staying if replica.state is ModelState.READY), key=lambda replica: replica.last_used_s):
        if missing <= 0:
            break
        victims.append(replica.model)
        missing -= replica.bytes
    return victims if missing <= 0 else None


class RoundRobin(LruRouter):
    """Router to each server in its turn."""

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, request: Request, fleet: Fleet, now_s: float) -> SendRequest | RefuseRequest:
        names = list(fleet.servers)
        self._turn += 1
        return SendRequest(names[self._turn % len(names)]) if names else RefuseRequest()


class RandomServer(LruRouter):
    """Router to any server, whatever it has loaded."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def choose(self, request: Request, fleet: Fleet, now_s: float) -> SendRequest | RefuseRequest:
        return SendRequest(self._random.choice(list(fleet.servers))) if fleet.servers else RefuseRequest()


class LeastOutstanding(LruRouter):
    """Router to the server with the least work there; of several any."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def choose(self, request: Request, fleet: Fleet, now_s: float) -> SendRequest | RefuseRequest:
        if not fleet.servers:
            return RefuseRequest()
        least_s = min(server.work_s for server in fleet.servers.values())
        return SendRequest(self._random.choice([name for name, server in fleet.servers.items() if server.work_s <= least_s + 1e-9]))


class ConsistentHash(LruRouter):
    """Router by the model's name, on a ring with 100 points for each server (Karger et al. 1997): "sticky"."""

    _POINTS = 100

    def __init__(self) -> None:
        self._ring: list[tuple[int, str]] = []
        self._members: list[str] = []

    def choose(self, request: Request, fleet: Fleet, now_s: float) -> SendRequest | RefuseRequest:
        return SendRequest(next(self.clockwise(request.model, fleet))) if fleet.servers else RefuseRequest()

    def clockwise(self, model: str, fleet: Fleet) -> Iterator[str]:
        """All servers, from the model's place on."""
        members = list(fleet.servers)
        if members != self._members:
            self._members = members
            self._ring = sorted((_hash(f"{name}/{point}"), name) for name in members for point in range(self._POINTS))
        start, seen = bisect_left(self._ring, (_hash(model), "")), set[str]()
        for at in range(len(self._ring)):
            name = self._ring[(start + at) % len(self._ring)][1]
            if name not in seen:
                seen.add(name)
                yield name


class BoundedHash(ConsistentHash):
    """Router to the next server on the ring that has less than 1.25 times the mean (Mirrokni, Thorup and Zadimoghaddam 2018)."""

    _FACTOR = 1.25

    def choose(self, request: Request, fleet: Fleet, now_s: float) -> SendRequest | RefuseRequest:
        if not fleet.servers:
            return RefuseRequest()
        service_s = fleet.models[request.model].service_s
        there = sum(server.work_s for server in fleet.servers.values()) / service_s
        most = ceil(self._FACTOR * (there + 1) / len(fleet.servers) - 1e-9)
        allowed_s = (most - 1) * service_s + 1e-9
        return SendRequest(next(name for name in self.clockwise(request.model, fleet) if fleet.servers[name].work_s <= allowed_s))


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())
