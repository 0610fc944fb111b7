from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.core.algorithms.backoff import RestartLimits, count_failures, restart_delay_s

LIMITS = RestartLimits(first_delay_s=0.2, max_delay_s=30.0, settled_after_s=60.0)


@pytest.mark.parametrize(
    ("failures", "delay_s"),
    [
        pytest.param(1, 0.2, id="the first failure waits the first delay"),
        pytest.param(2, 0.4, id="each further one doubles it"),
        pytest.param(8, 25.6, id="the last below the bound"),
        pytest.param(9, 30.0, id="bounded"),
        pytest.param(100_000, 30.0, id="a week of failures does not overflow"),
    ],
)
def test_delay(failures: int, delay_s: float) -> None:
    assert restart_delay_s(failures, limits=LIMITS) == pytest.approx(delay_s)


@pytest.mark.parametrize(
    ("previous", "life_s", "failures"),
    [
        pytest.param(0, 1.0, 1, id="the first"),
        pytest.param(4, 1.0, 5, id="one more in a row"),
        pytest.param(4, 60.0, 5, id="exactly the bound has not settled"),
        pytest.param(4, 60.1, 1, id="a long life forgets"),
    ],
)
def test_count(previous: int, life_s: float, failures: int) -> None:
    assert count_failures(previous, life_s=life_s, limits=LIMITS) == failures


@given(lives=st.lists(st.floats(min_value=0, max_value=3600), min_size=1))
def test_delays_of_any_history_are_bounded_and_rise_until_a_long_life(lives: list[float]) -> None:
    failures, last_s = 0, 0.0
    for life_s in lives:
        failures = count_failures(failures, life_s=life_s, limits=LIMITS)
        delay_s = restart_delay_s(failures, limits=LIMITS)
        assert LIMITS.first_delay_s <= delay_s <= LIMITS.max_delay_s
        assert delay_s >= last_s or life_s > LIMITS.settled_after_s
        last_s = delay_s


@given(failures=st.integers(min_value=1, max_value=10**9))
def test_limits_are_respected_whatever_they_are(failures: int) -> None:
    narrow = RestartLimits(first_delay_s=1.0, max_delay_s=1.5)
    assert restart_delay_s(failures, limits=narrow) == (1.0 if failures == 1 else 1.5)
