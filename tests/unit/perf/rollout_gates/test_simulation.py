from __future__ import annotations

import numpy as np
import pytest

from perf.rollout_gates.__main__ import ALIKE, WORSE, simulated
from perf.rollout_gates.judges import GATES, KAYENTA, LEAST_POINTS, THRESHOLD, Gates, is_high
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


@pytest.mark.parametrize(
    ("shift", "spread", "points", "expected"),
    [
        pytest.param(0.0, 1.0, 100, False, id="alike"),
        pytest.param(-5.0, 1.0, 100, False, id="better"),
        pytest.param(3.0, 1.0, 100, True, id="worse"),
        pytest.param(0.4, 1.0, 100, False, id="the interval reaches down to a quarter of the shift"),
        pytest.param(3.0, 1.0, 3, False, id="too few points for any rank"),
        pytest.param(0.0, 0.0, 60, False, id="all the same"),
    ],
)
def test_kayentas_classifier(shift: float, spread: float, points: int, expected: bool) -> None:
    drawn = np.random.default_rng(3)
    assert is_high(drawn.normal(shift, spread, points), drawn.normal(0.0, spread, points)) is expected


def test_the_interval_of_the_shift_is_the_published_one() -> None:
    """With 5 values beside 5 of which all are lower U is 0, which the normal approximation calls significant at 98 %."""
    low, high = np.arange(5.0), np.arange(5.0) + 10.0
    assert is_high(high, low)
    assert not is_high(np.array([0.5, 2.5, 10.0, 11.0, 12.0]), low), "U of 5 is not"


def test_kayenta_says_nothing_before_it_has_its_points() -> None:
    found = simulated(WORSE[0], KAYENTA, range(3), LEAST_POINTS + 1)
    assert all(failed for failed, _ in found)
    assert min(requests for _, requests in found) > 8 * LEAST_POINTS
    assert not any(failed for failed, _ in simulated(WORSE[0], KAYENTA, range(3), LEAST_POINTS - 1))
