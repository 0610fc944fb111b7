"""Offered load of each pool: the work that callers ask for, whether it is done or refused. An autoscaler provides servers for it.

Utilisation cannot show it: a full server looks the same however many requests wait for it. So requests count by the time they
take of a server, and requests that were refused for lack of servers count by the mean of the others.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from control_plane.core.model import ModelState
from control_plane.fleet.domain.fleet import Fleet, Server


@dataclass(frozen=True, slots=True)
class Requests:
    """Counts of requests since the start, over all processes that answer the data ports."""

    computed: Mapping[str, int]
    """By model: requests that a server has computed, or has had to."""
    turned_away: int = 0
    """Requests that were shed since a queue was full, or a deadline could not be met."""
    unnamed: int = 0
    """Computed requests of models that are counted together, since there are too many to count each by its name."""


@dataclass(slots=True)
class OfferedWork:
    """Counter of the work that was offered to each pool, in seconds of a whole server."""

    seconds: dict[str, float] = field(default_factory=dict)
    """By pool. The rate of its growth is how many servers would be busy all the time."""
    _counted: Requests = field(default_factory=lambda: Requests({}))
    _mean_s: float = 0.0
    """Mean time of the requests that were counted last."""

    def count(self, now: Requests, fleet: Fleet) -> None:
        """Count what was asked for since the last call, by the models' service times and places now."""
        new: defaultdict[str, float] = defaultdict(float)
        requests = 0
        for model, total in now.computed.items():
            count = max(0, total - self._counted.computed.get(model, 0))
            if count and (facts := fleet.models.get(model)) is not None:
                requests += count
                for pool, share in _shares(model, fleet).items():
                    new[pool] += count * facts.service_s * share / _parallel(fleet, pool)
        if requests:
            self._mean_s = sum(new.values()) / requests
        missed = (max(0, now.turned_away - self._counted.turned_away) + self._unnamed_since(now)) * self._mean_s
        # By the same shares as what was served; where nothing was, by those of all time.
        shares = _normal(new) or _normal(self.seconds)
        for pool in {*pools(fleet), *new}:
            self.seconds[pool] = self.seconds.get(pool, 0.0) + new[pool] + missed * shares.get(pool, 0.0)
        self._counted = now

    def _unnamed_since(self, now: Requests) -> int:
        """Return the new requests without a name: not those of models that have lost theirs since, whose counts have fallen."""
        fallen = sum(max(0, count - now.computed.get(model, 0)) for model, count in self._counted.computed.items())
        return max(0, now.unnamed - self._counted.unnamed - fallen)


def pools(fleet: Fleet) -> list[str]:
    """Return every pool that has servers, and always the empty name: an autoscaler's query is never empty."""
    return sorted({"", *(server.pool for server in fleet.servers.values())})


def pending_s(fleet: Fleet, pool: str) -> float:
    """Return the seconds of a whole server that the requests at a pool's servers will take."""
    return sum(server.work_s / server.parallel for server in _servers(fleet, pool))


def loading_s(fleet: Fleet, pool: str, now_s: float) -> float:
    """Return the seconds until the last load that runs or waits in a pool is expected to end; 0 without any."""
    return max((max(0.0, server.loads_until_s - now_s) for server in _servers(fleet, pool)), default=0.0)


def serving(fleet: Fleet, pool: str) -> int:
    """Return how many servers of a pool take requests."""
    return sum(server.is_open for server in _servers(fleet, pool))


def _servers(fleet: Fleet, pool: str) -> list[Server]:
    return list(fleet.pools.get(pool, {}).values())


def _parallel(fleet: Fleet, pool: str) -> float:
    """Requests that one server of the pool serves at a time, on average."""
    found = _servers(fleet, pool)
    return sum(server.parallel for server in found) / len(found) if found else 1.0


def _shares(model: str, fleet: Fleet) -> Mapping[str, float]:
    """The part of a model's requests that each pool gets, by where its ready replicas are; without any the empty
    pool's, whose servers take every request."""
    places = Counter(server.pool for server, replica in fleet.replicas(model) if replica.state is ModelState.READY)
    return _normal(places) or {"": 1.0}


def _normal(counts: Mapping[str, float]) -> Mapping[str, float]:
    total = sum(counts.values())
    return {pool: count / total for pool, count in counts.items()} if total else {}
