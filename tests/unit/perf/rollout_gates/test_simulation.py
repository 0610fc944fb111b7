from __future__ import annotations

import numpy as np
import pytest

from perf.rollout_gates.__main__ import ALIKE, WORSE, simulated
from perf.rollout_gates.judges import GATES, THRESHOLD, Gates
from perf.rollout_gates.worlds import Tick, World, ticks


@pytest.mark.parametrize("world", ALIKE, ids=lambda world: world.name)
def test_versions_that_are_alike_are_seldom_rolled_back(world: World) -> None:
    """A bounded part of the scenario's runs: with 1 % more than 7 of 200 would come once in 3,000 times."""
    assert sum(failed for failed, _ in simulated(world, GATES, range(200), 25)) <= 7


def test_the_threshold_rule_rolls_many_back() -> None:
    assert sum(failed for failed, _ in simulated(ALIKE[0], THRESHOLD, range(50), 25)) >= 10


def test_one_that_fails_always_is_found_at_once() -> None:
    found = simulated(WORSE[0], GATES, range(20), 50)
    assert all(failed for failed, _ in found)
    assert max(requests for _, requests in found) <= 60


def test_a_caller_counts_once_and_stays_where_it_is() -> None:
    world = World("w", "", (0.5,), units=20, weights=(0.5,))
    seen: dict[int, bool] = {}
    for tick in ticks(world, 10, np.random.default_rng(1)):
        for unit, is_canary in zip(tick.units.tolist(), tick.is_canary.tolist(), strict=True):
            assert seen.setdefault(unit, is_canary) == is_canary
    judge = Gates(1, alpha=0.01)
    for _ in range(2):
        judge.looks(Tick(np.array([True, False, False]), np.array([1, 2, 2]), [np.array([True, False, True])]))
    (gate,) = judge._gates
    assert (gate.canary, gate.canary_bad, gate.stable, gate.stable_bad) == (1, 1, 1, 0)
