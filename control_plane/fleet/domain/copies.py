"""How many copies of a model there should be, by measured demand; asked by `fleet/reconciler` every tick.

It grows, in the pools where it is, as soon as its copies are busy, or so busy that its requests wait for each other longer than its
latency objective allows, and shrinks one by one when they have long been idle; between the two nothing changes. Bursts are no
matter of this: there `fleet/domain/routing` asks for another copy itself. Nor are the last copies of models that nobody uses:
they cost nothing until somebody needs their memory.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import ceil, exp, log

from control_plane.core.model import ModelState
from control_plane.fleet.domain.fleet import SLOW_S, Fleet, ModelFacts, Server


@dataclass(frozen=True, slots=True)
class CopiesLimits:
    """Parts of the time for which requests for the model keep a copy busy that does nothing else."""

    grow_above: float = 0.7
    """Requests for others, and chance, take what is left."""

    aim_at: float = 0.5
    """After it has grown."""

    shrink_below: float = 0.35
    """Of those that would remain. Far enough below `aim_at` that what has just grown does not shrink at once."""

    near_objective: float = 0.8
    """Of the wait for which the latency objective has room: a copy stays if without it requests would wait longer. Else what has grown
    would shrink at once."""

    least_busy: float = 0.1
    """None is added for the objective's sake if all would be less busy than this: then it is not waiting for each other that makes
    requests late."""

    keep_s: float = 60.0
    """A copy is kept so long after it became ready: what came in waves comes again."""


_DEFAULT = CopiesLimits()


def wanted_copies(facts: ModelFacts, fleet: Fleet, now_s: float, *, limits: CopiesLimits = _DEFAULT) -> int:
    """Between what its spec asks for at least and at most, and never more than there are servers up that it may be on.

    By demand it is as many as the pools hold in which it has a copy, and one in each of these.
    """
    have = _staying(facts, fleet)
    pools = {server.pool for server in have}
    wanted = max(_by_demand(facts, have, now_s, limits), len(pools))
    fitting = [server for server in fleet.servers.values() if _is_staying(server) and server.has_labels(facts.spec.server_labels)]
    if wanted > len(have):
        wanted = max(len(have), min(wanted, sum(any(server.is_for(pool) for pool in pools) for server in fitting)))
    most = len(fitting) if facts.spec.max_copies is None else min(len(fitting), facts.spec.max_copies)
    return min(max(wanted, facts.spec.min_copies), most)


def pool_to_grow(facts: ModelFacts, fleet: Fleet) -> str | None:
    """Where the next copy goes that is wanted: to the pool of the busiest one; None: anywhere, since it is not for demand's sake."""
    have = _staying(facts, fleet)
    if not have or len(have) < facts.spec.min_copies:
        return None
    return max(have, key=lambda server: (server.copies[facts.name].in_flight, server.work_s / server.parallel)).pool


def copy_to_drop(facts: ModelFacts, fleet: Fleet, now_s: float, *, limits: CopiesLimits = _DEFAULT) -> str | None:
    """The server whose copy goes when there are more than wanted; None: all of them are in use or new, or the last of their pool.

    The last of a pool goes only if the model may not have so many. From a server that is ejected if there is one, else from the one that
    has the least memory free, then the most to do.
    """
    have, most = _staying(facts, fleet), facts.spec.max_copies
    in_pool = Counter(server.pool for server in have)
    is_over = most is not None and len(have) > most
    spare = [server for server in have if is_over or in_pool[server.pool] > 1]
    can_go = [server for server in spare if _is_idle(server, facts.name, now_s, limits)]
    if not can_go:
        return None
    return min(can_go, key=lambda server: (not server.is_ejected, server.free_bytes, -server.work_s, server.name)).name


def _staying(facts: ModelFacts, fleet: Fleet) -> list[Server]:
    holders = fleet.holders.get(facts.name, {}).values()
    return [server for server in holders if _is_staying(server) and server.copies[facts.name].state is not ModelState.UNLOADING]


def _is_staying(server: Server) -> bool:
    return server.is_up and not server.is_leaving


def _by_demand(facts: ModelFacts, have: list[Server], now_s: float, limits: CopiesLimits) -> int:
    if not have:
        return 0
    parallel = sum(server.parallel for server in have) / len(have)
    busy = facts.demand(now_s) / parallel
    objective_s = facts.spec.latency_objective_s
    wanted = ceil(busy / limits.aim_at) if busy > limits.grow_above * len(have) else 0
    if objective_s is not None:
        wanted = max(wanted, _for_objective(busy, facts.service_s, objective_s, limits))
    if wanted > len(have):
        return wanted
    lasting = max(busy, facts.rate_slow * exp(-max(0.0, now_s - facts.last_used_s) / SLOW_S) * facts.service_s / parallel)
    is_settled = all(_has_settled(server, facts.name, now_s, limits) for server in have)
    if len(have) == 1 or not is_settled or lasting >= limits.shrink_below * (len(have) - 1):
        return len(have)
    if objective_s is not None:
        near_s = facts.service_s + limits.near_objective * (objective_s - facts.service_s)
        return max(len(have) - 1, min(len(have), _for_objective(lasting, facts.service_s, near_s, limits)))
    return len(have) - 1


def _for_objective(busy: float, service_s: float, objective_s: float, limits: CopiesLimits) -> int:
    """As few as will do for requests that wait for nothing but each other; 0: no number would do."""
    if service_s >= objective_s:
        return 0
    copies, lost = 0, 1.0
    while True:
        copies += 1
        lost = busy * lost / (copies + busy * lost)
        if busy < limits.least_busy * (copies + 1) or (busy < copies and _slowest_s(copies, busy, lost, service_s) <= objective_s):
            return copies


def _slowest_s(copies: int, busy: float, lost: float, service_s: float) -> float:
    """What 99 of 100 requests do not exceed.

    Erlang's formulas for random arrivals and services (M/M/c): `lost` (B) is the part that would be lost if nobody waited, of which follows
    the part that waits (C); longer than t waits C * exp(-(copies - busy) * t / service). If services are all alike it is half as long.
    """
    waiting = lost / (1.0 - busy / copies * (1.0 - lost))
    return service_s * (1.0 + log(max(1.0, 100.0 * waiting)) / (copies - busy))


def _has_settled(server: Server, model: str, now_s: float, limits: CopiesLimits) -> bool:
    copy = server.copies[model]
    return copy.state is ModelState.READY and now_s - copy.since_s >= limits.keep_s


def _is_idle(server: Server, model: str, now_s: float, limits: CopiesLimits) -> bool:
    copy = server.copies[model]
    return not copy.in_flight and not copy.sequences and not copy.is_step and _has_settled(server, model, now_s, limits)
