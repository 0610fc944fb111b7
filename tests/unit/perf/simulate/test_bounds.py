"""The clairvoyant bound: worked out by hand, and below what any policy needs."""

from __future__ import annotations

from random import Random

import pytest

from control_plane.fleet.simulation.engine import simulate
from control_plane.fleet.simulation.generators import model_names, zipf
from control_plane.fleet.simulation.workload import FleetShape, ModelCost, Request, Workload
from perf.simulate.bounds import fewest_loads
from perf.simulate.policies import POLICIES


def workload(models: str, **sizes: int) -> Workload:
    requests = [Request(10.0 * at, model, 0.01) for at, model in enumerate(models)]
    return Workload(requests, {model: ModelCost(sizes.get(model, 1), 0.05) for model in models})


@pytest.mark.parametrize(
    ("models", "slots", "loads"),
    [
        pytest.param("aaaa", 1, 1, id="one model"),
        pytest.param("abab", 2, 2, id="room for both"),
        pytest.param("abab", 1, 3, id="a stays, b is not kept"),
        pytest.param("abcabcabc", 2, 5, id="a circle: LRU would load nine times"),
        pytest.param("abcd", 2, 4, id="nothing comes twice"),
    ],
)
def test_by_hand(models: str, slots: int, loads: int) -> None:
    assert fewest_loads(workload(models), slots) == loads


def test_sizes() -> None:
    """Between two uses a and b take a third and all of the memory for two requests each, of eighteen units in all."""
    assert fewest_loads(workload("abcabc", b=3), 3) == 3
    assert fewest_loads(workload("aabb", b=2), 2) == 2
    assert fewest_loads(workload("abcd", b=2), 3) == 4


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("is_unequal", [False, True])
def test_it_is_below_every_policy(policy: str, is_unequal: bool) -> None:
    """Requests are far apart, so that none waits for another's load."""
    random = Random(4)
    names = zipf(random, model_names(12), 400, 0.8)
    requests = [Request(10.0 * at, model, 0.01) for at, model in enumerate(names)]
    models = {name: ModelCost(random.choice([50, 100, 200]) if is_unequal else 100, 0.05) for name in set(names)}
    outcome = simulate(Workload(requests, models), FleetShape(3, 300), POLICIES[policy](1))
    bound = fewest_loads(Workload(requests, models), 900)
    assert outcome.requests == 400
    assert outcome.max_held_bytes <= 300
    # ModelMesh would rather refuse; each request that it refused may have saved it a load.
    assert 12 <= bound <= outcome.loads + outcome.refused
