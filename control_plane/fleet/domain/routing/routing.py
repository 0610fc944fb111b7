"""Routing policy (load balancing): which of a model's replicas serves a request. It is called for every request, so it must be
cheap.

It chooses a replica at which the request is expected to finish about as soon as at any other. `fleet/domain/placement` decides
whether to load another replica instead, because there is none or a load would be faster; most requests do not get there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from zlib import crc32

from control_plane.core.model import ModelState
from control_plane.fleet.domain.fleet import Fleet, ModelFacts, Replica, Server


@dataclass(frozen=True, slots=True)
class RoutingLimits:
    """Limits of the choice of a server: how much waiting or computing it may cost to prefer another."""

    equal_within_services: float = 0.5
    """Replicas within so many service times of the best one count as equal, and one of them is drawn: other
    processes may be about to send to the best one as well, and it would be everybody's (herd behaviour).
    Affinity may cost this much, too."""

    sample_size: int = 6
    """Replicas considered if a model has more: so many are drawn at random; with an affinity key half of them
    are drawn by the key."""


@dataclass(slots=True)
class Choice:
    """Decision of the routing policy. It is never changed, but not frozen: each request makes one, and frozen
    classes are slower to make."""

    server: str | None
    """None if no replica could serve the request."""
    expected_s: float
    """Seconds until the request has been served there; infinite if there is no replica, or only on ejected
    servers: then any other place is better."""
    needs_placement: bool
    """A load elsewhere may be sooner than `expected_s`, or is the only way: ask `placement.place`."""
    is_probe: bool = False
    """The server is ejected, and this request shows whether it has recovered; the next probe comes after a
    pause."""


_MISS = Choice(None, inf, needs_placement=True)
_DEFAULT = RoutingLimits()


def choose(
    fleet: Fleet,
    model: str,
    now_s: float,
    draw: float,
    *,
    pool: str | None = None,
    affinity_key: int | None = None,
    avoid: frozenset[str] = frozenset(),
    limits: RoutingLimits = _DEFAULT,
) -> Choice:
    """Choose a replica that is ready or being loaded.

    `draw` is a random number of [0, 1). `affinity_key` is an affinity key, a hash of what requests have in
    common: requests with the same key go to the same one of several equally good replicas. Outside its `pool`
    a request counts as waiting longer than a load takes, so it goes there only if the pool has no room for a
    replica. To the servers `avoid` it goes only if no others have replicas, or these are silent: an error that
    comes at once is better than none.
    """
    holders, facts = fleet.holders.get(model), fleet.models.get(model)
    if not holders or facts is None:
        return _MISS
    if avoid:
        holders = {name: server for name, server in holders.items() if name not in avoid and not server.is_silent} or holders
    # Most models have one replica: this shortcut keeps their requests off the general path.
    if len(holders) == 1:
        server = next(iter(holders.values()))
        if server.is_avoided:
            return _among_avoided([server], facts, now_s)
        expected_s = _expected_s(server, server.replicas[model], facts, now_s, pool)
        return _MISS if expected_s == inf else Choice(server.name, expected_s, _is_long(expected_s, facts))
    servers: Sequence[Server] = list(holders.values())
    meeting: Sequence[Server] = ()
    if len(servers) > limits.sample_size:
        meeting = [] if affinity_key is None else _spread_sample(servers, affinity_key % 997 / 997, limits.sample_size // 2)
        servers = [*meeting, *_spread_sample(servers, draw, limits.sample_size - len(meeting))]
        # The same random number is used twice; the digits that the sample did not use choose within it.
        draw = draw * len(holders) % 1.0
    costs = [(_expected_s(server, server.replicas[model], facts, now_s, pool), server.name) for server in servers if not server.is_avoided]
    # Fewer costs than servers: some are ejected or silent, and one of them may be due for a probe.
    if len(costs) < len(servers) and (probe := _due_probe(servers, model, now_s)) is not None:
        return probe
    best_s, _ = min(costs, default=(inf, ""))
    # Nothing but such servers, or none that could serve it.
    if best_s == inf:
        return _among_avoided(servers, facts, now_s) if len(costs) < len(servers) else _MISS
    # Drawn among near-equals rather than the minimum: other processes choose by the same view, a moment old.
    limit_s = best_s + limits.equal_within_services * facts.service_s
    near = [each for each in costs if each[0] <= limit_s]
    expected_s, name = near[int(draw * len(near))] if affinity_key is None else _by_affinity(near, affinity_key, meeting)
    return Choice(name, expected_s, _is_long(best_s, facts))


def has_other(fleet: Fleet, model: str, avoid: frozenset[str], *, is_idle: bool = False) -> bool:
    """Whether a server other than those of `avoid` has a ready replica, which, with `is_idle`, could begin a
    request at once."""
    return any(
        name not in avoid
        and server.is_up
        and not server.is_draining
        and not server.is_avoided
        and server.replicas[model].state is ModelState.READY
        and not (is_idle and server.work_s >= fleet.models[model].service_s * server.parallel)
        for name, server in fleet.holders.get(model, {}).items()
    )


def _is_long(expected_s: float, facts: ModelFacts) -> bool:
    """Whether a load elsewhere may be sooner: the wait exceeds a load (as it always does outside the pool),
    or the latency objective, which the model alone could meet."""
    objective_s = facts.spec.latency_objective_s
    return expected_s - facts.service_s > facts.load_s or (objective_s is not None and facts.service_s < objective_s < expected_s)


def _expected_s(server: Server, replica: Replica, facts: ModelFacts, now_s: float, pool: str | None) -> float:
    """Seconds until the server would have served the request; infinite if it cannot."""
    if not server.is_up or server.is_draining:
        return inf
    wait_s = server.work_s / server.parallel
    if server.silent_from_s is not None:
        wait_s += now_s - server.silent_from_s
    if replica.state is ModelState.LOADING:
        # Requests that wait for the load are served before this one; a server that does not serve while it
        # loads has them in `work_s`. A load that is late by t is expected to take t longer: it may hang.
        waiting_s = replica.in_flight * facts.service_s / server.parallel if server.serves_while_loading else 0.0
        wait_s = max(wait_s, abs(replica.ready_s - now_s) + waiting_s)
    elif replica.state is not ModelState.READY:
        return inf
    return wait_s + server.off_pool_penalty_s(pool, facts.load_s) + facts.service_s


def _by_affinity(near: Sequence[tuple[float, str]], affinity_key: int, meeting: Sequence[Server]) -> tuple[float, str]:
    """The replica that requests with the same affinity key share, among the near ones; of many replicas one
    that the key itself drew goes first.

    Rendezvous (highest random weight) hashing: when a server joins or leaves, only the keys that it wins or
    held move.
    """
    names = {server.name for server in meeting}
    return max(near, key=lambda each: (each[1] in names, _mixed(crc32(each[1].encode()) ^ affinity_key)))


def _mixed(number: int) -> int:
    """Multiplicative hashing (Knuth, TAOCP 6.4). Without it the checksums of two names would differ in the
    same bits whatever the key."""
    return number * 0x9E3779B1 & 0xFFFFFFFF


def _spread_sample(servers: Sequence[Server], draw: float, size: int) -> list[Server]:
    """A sample of `size` servers, evenly spread, beginning at one that `draw` chooses."""
    first, step = draw * len(servers), len(servers) / size
    return [servers[int(first + number * step) % len(servers)] for number in range(size)]


def _due_probe(servers: Sequence[Server], model: str, now_s: float) -> Choice | None:
    """A probe of an ejected server that is due for one, if there is any."""
    for server in servers:
        if (
            server.is_ejected
            and not server.is_silent
            and server.is_up
            and not server.is_draining
            and now_s >= server.probe_from_s
            and server.replicas[model].state is ModelState.READY
        ):
            return Choice(server.name, 0.0, needs_placement=False, is_probe=True)
    return None


def _among_avoided(servers: Sequence[Server], facts: ModelFacts, now_s: float) -> Choice:
    """All replicas are on ejected or silent servers: serve the request there rather than nowhere, at a silent
    one only if there is no other.

    Any other place is better than an ejected server. A silence that has lasted t is expected to last t longer,
    so a load elsewhere is better once it has lasted as long as a load takes.
    """
    probe = _due_probe(servers, facts.name, now_s)
    if probe is not None:
        return probe
    costs = [
        (server.is_silent, cost_s, server.name)
        for server in servers
        if server.is_avoided and (cost_s := _expected_s(server, server.replicas[facts.name], facts, now_s, None)) < inf
    ]
    if not costs:
        return _MISS
    is_silent, cost_s, name = min(costs)
    return Choice(name, cost_s, _is_long(cost_s, facts)) if is_silent else Choice(name, inf, needs_placement=True)
