"""Capacity planning: how many servers a trace needs, and how many an autoscaler would keep for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil

from control_plane.fleet.simulation.engine import simulate
from control_plane.fleet.simulation.outcome import SimulationResult
from control_plane.fleet.simulation.router import Router
from control_plane.fleet.simulation.workload import FleetShape, Workload

WINDOW_S, UTILISATION, PERIOD_S, STABLE_S = 30.0, 0.7, 15.0, 600.0
"""The rule `tidegate_needed_servers` of `deploy/kubernetes/components/monitoring`, and how its components `keda` and `hpa`
scale by it: work offered over so long, servers that are to be so busy, a look every 15 s, and never fewer servers than any
look of the last ten minutes wanted. A test compares both."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One number of servers that was simulated, and the outcome."""

    servers: int
    outcome: SimulationResult
    is_enough: bool


def fewest_servers(
    workload: Workload, shape: FleetShape, make_router: Callable[[], Router], *, p99_s: float, most: int
) -> tuple[int | None, list[Trial]]:
    """Find the smallest number of servers that answers 99 of 100 requests within `p99_s`; refused requests
    count as late.

    Returns that number and all that was tried, or None if `most` servers are not enough, or no number is. The
    search doubles the number and then bisects, as if more servers were never worse, which is true apart from
    chance.
    """
    tried: dict[int, Trial] = {}

    def is_enough(servers: int) -> bool:
        if servers not in tried:
            outcome = simulate(workload, replace(shape, servers=servers), make_router())
            tried[servers] = Trial(servers, outcome, outcome.part_within(p99_s) >= 0.99)
        return tried[servers].is_enough

    too_few, enough = 0, min(most, _min_servers(workload, shape.parallel))
    while not is_enough(enough):
        if enough == most or _more_cannot_help(tried, too_few, enough, p99_s):
            return None, [tried[servers] for servers in sorted(tried)]
        # Doubling bounds the interval in few runs, even where a fleet of hundreds is needed.
        too_few, enough = enough, min(2 * enough, most)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if is_enough(middle) else (middle, enough)
    return enough, [tried[servers] for servers in sorted(tried)]


def autoscaled_servers(workload: Workload, parallel: int) -> list[int]:
    """Return the number of servers that an autoscaler keeps from each of its looks on, by the rule of `deploy/kubernetes`.

    Without what is pending, which it adds, and as if servers came and went at once. A trace that is shorter than the rule's
    window is looked at once.
    """
    requests = workload.requests
    length_s = requests[-1].at_s if requests else 0.0
    window_s = min(WINDOW_S, length_s)
    if not window_s:
        return [1]
    found, work_s, begin, end = [], 0.0, 0, 0
    for look in range(int((length_s - window_s) // PERIOD_S) + 1):
        at_s = window_s + look * PERIOD_S
        while end < len(requests) and requests[end].at_s <= at_s:
            work_s, end = work_s + requests[end].service_s, end + 1
        while begin < end and requests[begin].at_s < at_s - window_s:
            work_s, begin = work_s - requests[begin].service_s, begin + 1
        # Less a little, as sums of many times are not exact.
        found.append(max(1, ceil(work_s / window_s / parallel / UTILISATION - 1e-6)))
    kept = round(STABLE_S / PERIOD_S) + 1
    return [max(found[max(0, look + 1 - kept) : look + 1]) for look in range(len(found))]


def _more_cannot_help(tried: dict[int, Trial], half: int, servers: int, p99_s: float) -> bool:
    """Whether twice the servers made no difference, and nothing was evicted on either number: then more
    cannot help."""
    if half not in tried:
        return False
    before, now = tried[half].outcome, tried[servers].outcome
    return not before.evictions and not now.evictions and now.part_within(p99_s) <= before.part_within(p99_s)


def _min_servers(workload: Workload, parallel: int) -> int:
    """The number of servers below which queues would grow until the trace ends."""
    work_s = sum(request.service_s for request in workload.requests)
    length_s = workload.requests[-1].at_s if workload.requests else 0.0
    return max(1, ceil(work_s / (length_s * parallel))) if length_s > 0 else 1
