"""When a server loads ahead of demand, and that each run is the same each time."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from control_plane.fleet.simulation.engine import simulate
from control_plane.fleet.simulation.outcome import SimulationResult
from control_plane.fleet.simulation.workload import FleetShape, ModelCost, Request, Workload
from perf.prefetch.__main__ import run
from perf.prefetch.cases import FORECASTS, OWN_TIMES, TIMERS, make
from perf.prefetch.forecasts import Clairvoyant
from perf.prefetch.report import Case
from perf.prefetch.router import PrefetchingRouter, PrefetchLimits
from perf.simulate.cases import LOAD_S, Files
from perf.simulate.traces import GenTd26

LONG_LOAD_S = 1.0


def ran(*requests: tuple[float, str], slots: int = 1, service_s: float = 0.01) -> SimulationResult:
    """One server, and a forecast that knows what comes within ten seconds."""
    workload = Workload([Request(at_s, model, service_s) for at_s, model in requests], {name: ModelCost(1, LONG_LOAD_S) for name in "ab"})
    router = PrefetchingRouter(Random(0), Clairvoyant(workload.requests), PrefetchLimits(horizon_loads=10.0))
    return simulate(workload, FleetShape(1, slots), router)


def test_what_is_asked_for_soon_is_loaded_before() -> None:
    outcome = ran((0.0, "a"), (20.0, "b"))
    assert (outcome.loads, outcome.prefetches, outcome.prefetches_used) == (2, 1, 1)
    assert outcome.waited_for_loads_s == pytest.approx(LONG_LOAD_S), "only the first has waited"


def test_a_model_that_is_wanted_as_soon_does_not_go_for_it() -> None:
    outcome = ran(*((float(number), "a") for number in range(19)), (19.0, "b"), (19.5, "a"))
    assert outcome.prefetches == 0


def test_a_server_that_works_does_not() -> None:
    assert ran(*((number / 2, "a") for number in range(28)), (20.0, "b"), slots=2, service_s=0.7).prefetches == 0


def test_what_was_prefetched_is_there_when_it_is_asked_for_though_others_come_before() -> None:
    outcome = ran((0.0, "a"), (20.0, "b"), (20.5, "a"), (29.0, "b"), slots=2)
    assert outcome.loads == 2


@pytest.mark.parametrize("forecast", FORECASTS)
def test_a_run_is_the_same_each_time(forecast: str) -> None:
    files = Files(GenTd26([f"m{number * number % 61}" for number in range(900)], [float(number) for number in range(900)]))
    first, second = (run(Case(OWN_TIMES, forecast), 1, files) for _ in range(2))
    assert first == second
    assert first.requests == 900
    assert 0 <= first.prefetches_used <= first.prefetches <= first.loads


def test_timers_are_as_regular_as_they_are_said_to_be() -> None:
    requests = make(TIMERS, 0, Files()).workload.requests
    times = [request.at_s for request in requests if request.model == "model-79"]
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert 100 * LOAD_S * 0.98 <= min(pauses) <= max(pauses) <= 1.05 * min(pauses)
