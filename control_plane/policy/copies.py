"""How many copies of a model there should be, by measured demand; asked by `services/reconciler` every tick.

It grows as soon as its copies are busy and shrinks one by one when they have long been idle; between the two nothing changes. Bursts
are no matter of this: there `policy/routing` asks for another copy itself. Nor are the last copies of models that nobody uses:
they cost nothing until somebody needs their memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, exp

from control_plane.domain.fleet import SLOW_S, Fleet, ModelFacts, Server
from control_plane.domain.model import ModelState


@dataclass(frozen=True, slots=True)
class CopiesLimits:
    """Parts of the time for which requests for the model keep a copy busy that does nothing else."""

    grow_above: float = 0.7
    """Requests for others, and chance, take what is left."""

    aim_at: float = 0.5
    """After it has grown."""

    shrink_below: float = 0.35
    """Of those that would remain. Far enough below `aim_at` that what has just grown does not shrink at once."""

    keep_s: float = 60.0
    """A copy is kept so long after it became ready: what came in waves comes again."""


_DEFAULT = CopiesLimits()


def wanted_copies(facts: ModelFacts, fleet: Fleet, now_s: float, *, limits: CopiesLimits = _DEFAULT) -> int:
    """Between what its spec asks for at least and at most, and never more than there are servers up."""
    have = _staying(facts, fleet)
    wanted = _by_demand(facts, have, now_s, limits)
    up = [server for server in fleet.servers.values() if server.is_up]
    most = len(up) if facts.spec.max_copies is None else min(len(up), facts.spec.max_copies)
    return min(max(wanted, facts.spec.min_copies), most)


def copy_to_drop(facts: ModelFacts, fleet: Fleet, now_s: float, *, limits: CopiesLimits = _DEFAULT) -> str | None:
    """The server whose copy goes when there are more than wanted; None: all of them are in use or new.

    From a server that is ejected if there is one, else from the one that has the least memory free, then the most to do.
    """
    can_go = [server for server in _staying(facts, fleet) if _is_idle(server, facts.name, now_s, limits)]
    if not can_go:
        return None
    return min(can_go, key=lambda server: (not server.is_ejected, server.free_bytes, -server.work_s, server.name)).name


def _staying(facts: ModelFacts, fleet: Fleet) -> list[Server]:
    holders = fleet.holders.get(facts.name, {}).values()
    return [server for server in holders if server.is_up and server.copies[facts.name].state is not ModelState.UNLOADING]


def _by_demand(facts: ModelFacts, have: list[Server], now_s: float, limits: CopiesLimits) -> int:
    if not have:
        return 0
    parallel = sum(server.parallel for server in have) / len(have)
    busy = facts.demand(now_s) / parallel
    if busy > limits.grow_above * len(have):
        return ceil(busy / limits.aim_at)
    lasting = max(busy, facts.rate_slow * exp(-max(0.0, now_s - facts.last_used_s) / SLOW_S) * facts.service_s / parallel)
    is_settled = all(_has_settled(server, facts.name, now_s, limits) for server in have)
    if len(have) > 1 and is_settled and lasting < limits.shrink_below * (len(have) - 1):
        return len(have) - 1
    return len(have)


def _has_settled(server: Server, model: str, now_s: float, limits: CopiesLimits) -> bool:
    copy = server.copies[model]
    return copy.state is ModelState.READY and now_s - copy.since_s >= limits.keep_s


def _is_idle(server: Server, model: str, now_s: float, limits: CopiesLimits) -> bool:
    copy = server.copies[model]
    return not copy.in_flight and not copy.sequences and not copy.is_step and _has_settled(server, model, now_s, limits)
