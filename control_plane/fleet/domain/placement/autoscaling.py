"""Autoscaling policy: the number of replicas of a model, by measured demand. `fleet/reconciler` asks it every tick.

The number grows, in the pools where the model has replicas, as soon as those are busy, or so busy that requests queue for longer
than the model's latency objective allows. It shrinks by one at a time after replicas have long been idle. In between it stays the
same (hysteresis). Two cases are handled elsewhere: for bursts, `fleet/domain/routing` asks for another replica itself; the last
replica of an unused model costs nothing until another model needs its memory, and is then evicted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import ceil, exp, log

from control_plane.core.model import ModelState
from control_plane.fleet.domain.fleet import SLOW_S, Fleet, ModelFacts, Server


@dataclass(frozen=True, slots=True)
class AutoscalingLimits:
    """Thresholds of utilisation: the part of time for which a model's requests keep a replica busy that
    serves nothing else."""

    grow_above: float = 0.7
    """Scale up above this. The rest is headroom for other models' requests and for chance."""

    target: float = 0.5
    """Utilisation to reach by scaling up."""

    shrink_below: float = 0.35
    """Scale down only if the remaining replicas would be less busy than this. It is far enough below
    `target` that a model which has just been scaled up is not scaled down at once."""

    near_objective: float = 0.8
    """Part of the queueing time that the latency objective leaves room for. A replica stays if without it
    requests would wait longer than this part: a full 1.0 would remove at once what the objective has just
    added."""

    min_busy: float = 0.1
    """No replica is added for the latency objective if all would be less busy than this: then requests are
    late for another reason than queueing."""

    keep_s: float = 60.0
    """A replica stays for at least so long after it became ready, since demand that comes in waves comes
    again."""


_DEFAULT = AutoscalingLimits()


def desired_replicas(facts: ModelFacts, fleet: Fleet, now_s: float, *, limits: AutoscalingLimits = _DEFAULT) -> int:
    """Return how many replicas there should be: within the minimum and maximum of the spec, and no more than
    there are suitable servers up.

    Demand alone asks for as many as the pools that have a replica can hold, and for one in each of these
    pools.
    """
    have = [server for server, _ in fleet.staying_replicas(facts.name)]
    # One replica stays in each pool, or the pool's next request would wait for a load.
    pools = {server.pool for server in have}
    wanted = max(_by_demand(facts, have, now_s, limits), len(pools))
    fitting = [server for server in fleet.servers.values() if server.is_staying and server.has_labels(facts.spec.server_labels)]
    if wanted > len(have):
        # Demand grows inside the model's own pools only; replicas there are not given up because the pools
        # are small.
        wanted = max(len(have), min(wanted, sum(any(server.is_for(pool) for pool in pools) for server in fitting)))
    most = len(fitting) if facts.spec.max_replicas is None else min(len(fitting), facts.spec.max_replicas)
    # The minimum is applied first: `max_replicas` and the number of servers win over it.
    return min(max(wanted, fleet.least_replicas(facts)), most)


def pool_to_grow(facts: ModelFacts, fleet: Fleet) -> str | None:
    """Return the pool for the next wanted replica: the busiest replica's; None if any pool will do, since not
    demand asks for it but `min_replicas`."""
    have = [server for server, _ in fleet.staying_replicas(facts.name)]
    if not have or len(have) < fleet.least_replicas(facts):
        return None
    return max(have, key=lambda server: (server.replicas[facts.name].in_flight, server.work_s / server.parallel)).pool


def replica_to_remove(facts: ModelFacts, fleet: Fleet, now_s: float, *, limits: AutoscalingLimits = _DEFAULT) -> str | None:
    """Return the server whose replica is to be unloaded when there are too many; None if all are in use, new,
    or the last of their pool.

    The last replica of a pool goes only if the model has more than `max_replicas`. Replicas on ejected or
    silent servers go first, then those on the server with the least free memory, then on the one with the most work.
    """
    have, most = [server for server, _ in fleet.staying_replicas(facts.name)], facts.spec.max_replicas
    in_pool = Counter(server.pool for server in have)
    is_over = most is not None and len(have) > most
    # A model over its `max_replicas` loses replicas even if a pool is left without one.
    spare = [server for server in have if is_over or in_pool[server.pool] > 1]
    can_go = [server for server in spare if _is_idle(server, facts.name, now_s, limits)]
    if not can_go:
        return None
    return min(can_go, key=lambda server: (not server.is_avoided, server.free_bytes, -server.work_s, server.name)).name


def _by_demand(facts: ModelFacts, have: list[Server], now_s: float, limits: AutoscalingLimits) -> int:
    """Replicas that the measured demand asks for; never more than one below those that there are."""
    if not have:
        return 0
    parallel = sum(server.parallel for server in have) / len(have)
    busy = facts.demand(now_s) / parallel
    objective_s = facts.spec.latency_objective_s
    wanted = ceil(busy / limits.target) if busy > limits.grow_above * len(have) else 0
    if objective_s is not None:
        wanted = max(wanted, _for_objective(busy, facts.service_s, objective_s, limits))
    if wanted > len(have):
        return wanted
    # Scaling down is decided by the slow rate as well, so that a lull between two waves removes nothing.
    lasting = max(busy, facts.rate_slow * exp(-max(0.0, now_s - facts.last_used_s) / SLOW_S) * facts.service_s / parallel)
    # A replica that is loading or has just become ready has not shown yet what it takes off the others.
    is_settled = all(_has_settled(server, facts.name, now_s, limits) for server in have)
    if len(have) == 1 or not is_settled or lasting >= limits.shrink_below * (len(have) - 1):
        return len(have)
    if objective_s is not None:
        # With a latency objective, one replica fewer must still meet the stricter, "near" objective (see
        # `near_objective`).
        near_s = facts.service_s + limits.near_objective * (objective_s - facts.service_s)
        return max(len(have) - 1, min(len(have), _for_objective(lasting, facts.service_s, near_s, limits)))
    return len(have) - 1


def _for_objective(busy: float, service_s: float, objective_s: float, limits: AutoscalingLimits) -> int:
    """The smallest number of replicas with which queueing alone does not miss the objective; 0 if no number
    would do."""
    if service_s >= objective_s:
        return 0
    replicas, lost = 0, 1.0
    while True:
        replicas += 1
        # Erlang's B formula, computed recursively from one replica fewer; stable for any number.
        lost = busy * lost / (replicas + busy * lost)
        if busy < limits.min_busy * (replicas + 1) or (busy < replicas and _slowest_s(replicas, busy, lost, service_s) <= objective_s):
            return replicas


def _slowest_s(replicas: int, busy: float, lost: float, service_s: float) -> float:
    """The 99th percentile of a request's time in the system, in seconds.

    Erlang's formulas for random arrivals and services (M/M/c). `lost` (Erlang B) is the part of requests that
    would be lost if nobody waited; from it follows the part that waits (Erlang C), and a wait exceeds t with
    probability C * exp(-(replicas - busy) * t / service). Where all services take equally long, waits are
    half as long.
    """
    waiting = lost / (1.0 - busy / replicas * (1.0 - lost))
    return service_s * (1.0 + log(max(1.0, 100.0 * waiting)) / (replicas - busy))


def _has_settled(server: Server, model: str, now_s: float, limits: AutoscalingLimits) -> bool:
    replica = server.replicas[model]
    return replica.state is ModelState.READY and now_s - replica.since_s >= limits.keep_s


def _is_idle(server: Server, model: str, now_s: float, limits: AutoscalingLimits) -> bool:
    replica = server.replicas[model]
    return not replica.in_flight and not replica.sequences and not replica.is_step and _has_settled(server, model, now_s, limits)
