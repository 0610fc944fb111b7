from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.fleet.domain.routing.workload import Length, WorkloadClass, WorkloadLimits, classify, learned_threshold, pool_for

LIMITS = WorkloadLimits(long_units=50.0, long_rows=64, long_bytes=1000, urgent_from=1)


@pytest.mark.parametrize(
    ("rows", "size_bytes", "cost_units", "long_units", "expected"),
    [
        pytest.param(1, 10, 1.0, None, Length.SHORT, id="cheap"),
        pytest.param(1, 10, 50.1, None, Length.LONG, id="dear"),
        pytest.param(1, 10, 20.0, 10.0, Length.LONG, id="dear for this traffic"),
        pytest.param(1000, 10**6, 1.0, None, Length.SHORT, id="large but known to be cheap"),
        pytest.param(64, 1000, None, None, Length.SHORT, id="nobody knows: small"),
        pytest.param(65, 10, None, None, Length.LONG, id="nobody knows: many rows"),
        pytest.param(1, 1001, None, 1e9, Length.LONG, id="nobody knows: many bytes"),
    ],
)
def test_long_or_short(rows: int, size_bytes: int, cost_units: float | None, long_units: float | None, expected: Length) -> None:
    found = classify(rows=rows, size_bytes=size_bytes, cost_units=cost_units, priority=0, long_units=long_units, limits=LIMITS)
    assert found == WorkloadClass(expected, is_urgent=False)


@pytest.mark.parametrize(("priority", "is_urgent"), [(-1, False), (0, False), (1, True), (9, True)])
def test_urgent_or_not(priority: int, is_urgent: bool) -> None:
    assert classify(rows=1, size_bytes=1, cost_units=1.0, priority=priority, limits=LIMITS).is_urgent is is_urgent


@pytest.mark.parametrize(
    ("workload", "pools", "expected"),
    [
        pytest.param(WorkloadClass(Length.SHORT, is_urgent=False), {"short", "long"}, "short", id="its own"),
        pytest.param(WorkloadClass(Length.LONG, is_urgent=False), {"short", "long-urgent"}, None, id="none: all servers"),
        pytest.param(WorkloadClass(Length.LONG, is_urgent=True), {"long", "long-urgent"}, "long-urgent", id="urgent"),
        pytest.param(WorkloadClass(Length.LONG, is_urgent=True), {"long", "short-urgent"}, "long", id="urgent, but no pool is for that"),
        pytest.param(WorkloadClass(Length.SHORT, is_urgent=True), set(), None, id="no pools"),
    ],
)
def test_pools(workload: WorkloadClass, pools: set[str], expected: str | None) -> None:
    assert pool_for(workload, pools) == expected


@pytest.mark.parametrize("scale", [0.01, 1.0, 1000.0])
def test_a_learned_threshold_leaves_a_tenth_long(scale: float) -> None:
    random, threshold = Random(1), 5.0
    costs = [scale * random.paretovariate(1.2) for _ in range(12_000)]
    for cost in costs:
        threshold = learned_threshold(threshold, cost)
    assert sum(cost > threshold for cost in costs) / len(costs) == pytest.approx(0.1, abs=0.03)


def test_a_burst_moves_it_a_little() -> None:
    threshold = 10.0
    for _ in range(100):
        threshold = learned_threshold(threshold, 1e6)
    assert threshold == pytest.approx(20.0, rel=0.02)


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_it_moves_towards_what_comes(threshold: float, cost: float) -> None:
    after = learned_threshold(threshold, cost)
    assert after >= 0
    assert after >= threshold if cost > threshold else after <= threshold
