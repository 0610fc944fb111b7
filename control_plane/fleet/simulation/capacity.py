"""How many servers a trace needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil

from control_plane.fleet.simulation.engine import simulate
from control_plane.fleet.simulation.outcome import Outcome
from control_plane.fleet.simulation.router import Router
from control_plane.fleet.simulation.workload import FleetShape, Workload


@dataclass(frozen=True, slots=True)
class Trial:
    """One number of servers, and what came of it."""

    servers: int
    outcome: Outcome
    is_enough: bool


def fewest_servers(
    workload: Workload, shape: FleetShape, make_router: Callable[[], Router], *, p99_s: float, most: int
) -> tuple[int | None, list[Trial]]:
    """The smallest number of servers that answers 99 of 100 requests within `p99_s`, refused ones being late, and all that was tried.

    It is looked for by doubling and then halving the interval: as if more servers were never worse, which is so but for chance.
    None: `most` servers are not enough, or no number is.
    """
    tried: dict[int, Trial] = {}

    def is_enough(servers: int) -> bool:
        if servers not in tried:
            outcome = simulate(workload, replace(shape, servers=servers), make_router())
            tried[servers] = Trial(servers, outcome, outcome.part_within(p99_s) >= 0.99)
        return tried[servers].is_enough

    too_few, enough = 0, min(most, _least_for_the_work(workload, shape.parallel))
    while not is_enough(enough):
        if enough == most or _is_as_good_as_it_gets(tried, too_few, enough, p99_s):
            return None, [tried[servers] for servers in sorted(tried)]
        too_few, enough = enough, min(2 * enough, most)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if is_enough(middle) else (middle, enough)
    return enough, [tried[servers] for servers in sorted(tried)]


def _is_as_good_as_it_gets(tried: dict[int, Trial], half: int, servers: int, p99_s: float) -> bool:
    """Nothing has to go for anything, and twice the servers made no difference."""
    if half not in tried:
        return False
    before, now = tried[half].outcome, tried[servers].outcome
    return not before.evictions and not now.evictions and now.part_within(p99_s) <= before.part_within(p99_s)


def _least_for_the_work(workload: Workload, parallel: int) -> int:
    """With fewer the queues would grow to the trace's end."""
    work_s = sum(request.service_s for request in workload.requests)
    length_s = workload.requests[-1].at_s if workload.requests else 0.0
    return max(1, ceil(work_s / (length_s * parallel))) if length_s > 0 else 1
