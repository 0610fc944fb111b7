from __future__ import annotations

import pytest

from control_plane.fleet.simulation.workload import Request
from perf.fleet.alone import Alone
from perf.fleet.prediction import Costs, predict
from perf.fleet.report import ROUND_ROBIN, STICKY_HASH, TIDEGATE

ALONE = {"a": Alone(60, 1.0, 0.5, 0.010), "b": Alone(60, 3.0, 0.5, 0.020)}
SERVICE_S = {"a": 0.011, "b": 0.022}
COSTS = Costs({"a": 60, "b": 60}, ALONE, SERVICE_S, load_s=4.0, unload_s=0.25)


@pytest.mark.parametrize(("way", "loads"), [(ROUND_ROBIN, 4), (STICKY_HASH, 2), (TIDEGATE, 2)])
def test_loads_are_those_of_each_ways_rule(way: str, loads: int) -> None:
    requests = [Request(20.0 * at, model, 0.0) for at, model in enumerate("aabbaabb")]
    outcome = predict(way, requests, COSTS, servers=2, budget_bytes=120)
    assert (outcome.loads, outcome.refused, outcome.answered) == (loads, 0, 8)


@pytest.mark.parametrize(("model", "load_s"), [("a", 2.0), ("b", 6.0)])
def test_a_load_takes_as_much_longer_than_alone_as_the_runs_did(model: str, load_s: float) -> None:
    outcome = predict(ROUND_ROBIN, [Request(0.0, model, 0.0)], COSTS, servers=1, budget_bytes=100)
    assert outcome.quantile_s(1.0) == pytest.approx(load_s + SERVICE_S[model])


def test_and_waits_until_what_it_replaces_is_gone() -> None:
    outcome = predict(ROUND_ROBIN, [Request(0.0, "b", 0.0), Request(20.0, "a", 0.0)], COSTS, servers=1, budget_bytes=100)
    assert outcome.quantile_s(0.5) == pytest.approx(0.25 + 2.0 + SERVICE_S["a"])
