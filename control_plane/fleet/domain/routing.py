"""Which of a model's copies serves a request: one where it is expected to have been served as soon as anywhere; asked for every request.

Whether a load elsewhere would be sooner still, or has to be since there is no copy, is for `fleet/domain/placement`; most requests need
not ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from zlib import crc32

from control_plane.core.model import ModelState
from control_plane.fleet.domain.fleet import Copy, Fleet, ModelFacts, Server


@dataclass(frozen=True, slots=True)
class RoutingLimits:
    """What a choice may cost."""

    near_services: float = 0.5
    """Copies that are behind the best one by less than so many services count as equal, and one of them is drawn: others may be about to
    send there as well, and always the best one would be everybody's. Requests that are alike may be kept together at this price."""

    looked_at: int = 6
    """Where a model has more copies so many are drawn, and the others not looked at; for requests that are alike half of them by that."""


@dataclass(slots=True)
class Choice:
    """Never changed, but not frozen: each request makes one."""

    server: str | None
    """None: there is no copy that could serve it."""
    expected_s: float
    """Until it has been served there; infinite where there is no copy, or none but on ejected servers: anywhere else is better."""
    asks_to_place: bool
    """A load elsewhere may be sooner than `expected_s`, or it is the only way: `placement.place` says."""
    is_probe: bool = False
    """The server is ejected, and this request shows whether it has recovered; the next one not before a pause."""


_MISS = Choice(None, inf, asks_to_place=True)
_DEFAULT = RoutingLimits()


def choose(
    fleet: Fleet,
    model: str,
    now_s: float,
    draw: float,
    *,
    pool: str | None = None,
    likeness: int | None = None,
    limits: RoutingLimits = _DEFAULT,
) -> Choice:
    """Choose a copy that is ready or loads.

    `draw` is random, of [0, 1). Requests of equal `likeness`, a hash of what they have in common, go to the same of several equally good
    copies. Outside of the `pool` a request counts for waiting longer than a load takes: it goes there if the pool has no room for a copy.
    """
    holders, facts = fleet.holders.get(model), fleet.models.get(model)
    if not holders or facts is None:
        return _MISS
    if len(holders) == 1:
        server = next(iter(holders.values()))
        if server.is_ejected:
            return _among_ejected([server], facts, now_s)
        expected_s = _expected_s(server, server.copies[model], facts, now_s, pool)
        return _MISS if expected_s == inf else Choice(server.name, expected_s, _is_long(expected_s, facts))
    servers: Sequence[Server] = list(holders.values())
    meeting: Sequence[Server] = ()
    if len(servers) > limits.looked_at:
        meeting = [] if likeness is None else _drawn(servers, likeness % 997 / 997, limits.looked_at // 2)
        servers = [*meeting, *_drawn(servers, draw, limits.looked_at - len(meeting))]
        draw = draw * len(holders) % 1.0
    costs = [(_expected_s(server, server.copies[model], facts, now_s, pool), server.name) for server in servers if not server.is_ejected]
    if len(costs) < len(servers) and (probe := _due_probe(servers, model, now_s)) is not None:
        return probe
    best_s, _ = min(costs, default=(inf, ""))
    if best_s == inf:
        return _among_ejected(servers, facts, now_s) if len(costs) < len(servers) else _MISS
    limit_s = best_s + limits.near_services * facts.service_s
    near = [each for each in costs if each[0] <= limit_s]
    expected_s, name = near[int(draw * len(near))] if likeness is None else _of_its_kind(near, likeness, meeting)
    return Choice(name, expected_s, _is_long(best_s, facts))


def _is_long(expected_s: float, facts: ModelFacts) -> bool:
    """Longer than a load takes, as always outside of the pool, or than requests should and could."""
    objective_s = facts.spec.latency_objective_s
    return expected_s - facts.service_s > facts.load_s or (objective_s is not None and facts.service_s < objective_s < expected_s)


def _expected_s(server: Server, copy: Copy, facts: ModelFacts, now_s: float, pool: str | None) -> float:
    """Until it would have served a request; infinite where it cannot."""
    if not server.is_up or server.is_leaving:
        return inf
    wait_s = server.work_s / server.parallel
    if copy.state is ModelState.LOADING:
        # The requests that wait for the load come before this one. A server that stops for loads has them in its work.
        # A load that is late is expected to take as long again as it is late: it may hang.
        waiting_s = copy.in_flight * facts.service_s / server.parallel if server.serves_while_loading else 0.0
        wait_s = max(wait_s, abs(copy.ready_s - now_s) + waiting_s)
    elif copy.state is not ModelState.READY:
        return inf
    return wait_s + server.away_s(pool, facts.load_s) + facts.service_s


def _of_its_kind(near: Sequence[tuple[float, str]], likeness: int, meeting: Sequence[Server]) -> tuple[float, str]:
    """The same one for all that are alike, if it is near; where there are many, one of those where they meet rather than any other."""
    names = {server.name for server in meeting}
    return max(near, key=lambda each: (each[1] in names, _mixed(crc32(each[1].encode()) ^ likeness)))


def _mixed(number: int) -> int:
    """Multiplicative hashing (Knuth 6.4): a checksum alone differs between two names by the same bits whatever it is mixed with."""
    return number * 0x9E3779B1 & 0xFFFFFFFF


def _drawn(servers: Sequence[Server], draw: float, size: int) -> list[Server]:
    """So many of them, evenly spread from a random one on."""
    first, step = draw * len(servers), len(servers) / size
    return [servers[int(first + number * step) % len(servers)] for number in range(size)]


def _due_probe(servers: Sequence[Server], model: str, now_s: float) -> Choice | None:
    for server in servers:
        if (
            server.is_ejected
            and server.is_up
            and not server.is_leaving
            and now_s >= server.probe_from_s
            and server.copies[model].state is ModelState.READY
        ):
            return Choice(server.name, 0.0, asks_to_place=False, is_probe=True)
    return None


def _among_ejected(servers: Sequence[Server], facts: ModelFacts, now_s: float) -> Choice:
    """Nobody else has it: better there than nowhere, but sooner loaded elsewhere."""
    probe = _due_probe(servers, facts.name, now_s)
    if probe is not None:
        return probe
    costs = [(_expected_s(server, server.copies[facts.name], facts, now_s, None), server.name) for server in servers if server.is_ejected]
    cost_s, name = min(costs)
    return _MISS if cost_s == inf else Choice(name, inf, asks_to_place=True)
