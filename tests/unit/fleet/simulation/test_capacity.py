"""The search for the fewest servers: it needs few trials, and says so if there is no such number."""

from __future__ import annotations

from dataclasses import replace

import pytest

from control_plane.fleet.domain.fleet import Fleet
from control_plane.fleet.simulation.capacity import STABLE_S, autoscaled_servers, fewest_servers
from control_plane.fleet.simulation.workload import Request, Workload
from tests.unit.fleet.simulation.fixed import Fixed, shape, workload


def in_turns() -> Fixed:
    turn = iter(range(10**9))

    def where(request: Request, fleet: Fleet) -> str:
        return list(fleet.servers)[next(turn) % len(fleet.servers)]

    return Fixed(where)


def burst(width: int) -> Workload:
    """Make bursts of so many requests each; loads take hardly any time."""
    requests = [(10.0 * round_, "a") for round_ in range(100) for _ in range(width)]
    return workload(*requests, models="a", load_s=0.001)


def test_the_smallest_number_that_is_enough() -> None:
    """Eleven requests at once, a second each, in at most two seconds: six servers."""
    enough, tried = fewest_servers(burst(11), shape(), in_turns, p99_s=2.01, most=100)
    assert enough == 6
    assert [(trial.servers, trial.is_enough) for trial in tried] == [(2, False), (4, False), (5, False), (6, True), (8, True)]


@pytest.mark.parametrize(("late", "enough"), [(1, 1), (2, 2)])
def test_one_of_a_hundred_may_be_late(late: int, enough: int) -> None:
    requests = [(10.0 * number, "a") for number in range(100 - late)] + [(10.0 * number + 0.001, "a") for number in range(10, 10 + late)]
    found, _ = fewest_servers(workload(*sorted(requests), models="a", load_s=0.001), shape(), in_turns, p99_s=1.5, most=4)
    assert found == enough


def test_one_is_enough() -> None:
    enough, tried = fewest_servers(burst(1), shape(), in_turns, p99_s=2.0, most=100)
    assert (enough, len(tried)) == (1, 1)


def test_no_more_than_were_allowed() -> None:
    enough, tried = fewest_servers(burst(11), shape(), in_turns, p99_s=2.01, most=5)
    assert (enough, tried[-1].servers) == (None, 5)
    enough, _ = fewest_servers(burst(11), shape(), in_turns, p99_s=2.01, most=6)
    assert enough == 6


def test_no_number_is_enough_when_one_request_takes_longer() -> None:
    enough, tried = fewest_servers(burst(4), shape(), in_turns, p99_s=0.5, most=10**9)
    assert enough is None
    assert len(tried) <= 5, "it saw that nothing changes"


def test_refused_requests_are_late() -> None:
    impossible = replace(shape(), deadline_s=0.0)
    enough, _ = fewest_servers(burst(3), impossible, in_turns, p99_s=100.0, most=2)
    assert enough is None


def steady(servers: float, *, from_s: float = 0.0, to_s: float, parallel: int = 1) -> list[Request]:
    """Requests of a tenth of a second that keep so many servers busy all the time."""
    gap_s = 0.1 / servers / parallel
    return [Request(from_s + number * gap_s, "a", 0.1) for number in range(round((to_s - from_s) / gap_s) + 1)]


@pytest.mark.parametrize(("servers", "kept"), [(0.1, 1), (0.7, 1), (0.72, 2), (2.0, 3), (6.9, 10)])
def test_an_autoscaler_keeps_as_many_as_are_busy_to_seven_tenths(servers: float, kept: int) -> None:
    assert set(autoscaled_servers(Workload(steady(servers, to_s=300.0), {}), 1)) == {kept}
    assert set(autoscaled_servers(Workload(steady(servers, to_s=300.0, parallel=4), {}), 4)) == {kept}


def test_what_a_peak_took_is_kept_for_ten_minutes() -> None:
    requests = steady(1.0, to_s=300.0) + steady(4.0, from_s=300.1, to_s=400.0) + steady(1.0, from_s=400.1, to_s=1500.0)
    found = autoscaled_servers(Workload(requests, {}), 1)
    assert (found[0], max(found), found[-1]) == (2, 6, 2)
    assert abs(15.0 * found.count(6) - STABLE_S - 100.0) <= 45.0


@pytest.mark.parametrize("requests", [[], [Request(0.0, "a", 5.0)]])
def test_a_trace_of_no_length_wants_one(requests: list[Request]) -> None:
    assert autoscaled_servers(Workload(requests, {}), 1) == [1]
