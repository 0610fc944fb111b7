from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.admission.domain.shares import recent_demand, share

demands = st.lists(st.floats(0, 1e6), min_size=1, max_size=20)


@pytest.mark.parametrize(
    ("own", "total", "processes", "expected"),
    [
        pytest.param(5.0, 5.0, 1, 1.0, id="alone it has all"),
        pytest.param(0.0, 0.0, 4, 0.25, id="equal parts while nobody asks"),
        pytest.param(10.0, 40.0, 4, 0.25, id="equal parts of equal demand"),
        pytest.param(100.0, 100.0, 2, 0.875, id="who gets all requests has all but the other's floor"),
        pytest.param(0.0, 100.0, 2, 0.125, id="the floor of who gets none"),
        pytest.param(120.0, 100.0, 2, 0.875, id="a total that is older than one's own demand"),
    ],
)
def test_share(own: float, total: float, processes: int, expected: float) -> None:
    assert share(own, total, processes) == pytest.approx(expected)


@given(demands)
def test_all_parts_are_a_whole_and_each_lets_something_through(demands: list[float]) -> None:
    parts = [share(own, sum(demands), len(demands)) for own in demands]
    assert sum(parts) == pytest.approx(1.0)
    assert all(0.24 / len(demands) < part <= 1.0 for part in parts)


@given(demands, st.floats(0, 1e6))
def test_who_has_more_demand_has_no_smaller_part(demands: list[float], more: float) -> None:
    total, processes = sum(demands) + more, len(demands)
    assert share(demands[0] + more, total, processes) >= share(demands[0], total, processes)


@pytest.mark.parametrize(
    ("before", "requests", "elapsed_s", "expected"),
    [
        pytest.param({}, {"a": 10}, 1.0, {"a": 5.0}, id="half of it is of the last second"),
        pytest.param({"a": 10.0}, {"a": 10}, 1.0, {"a": 10.0}, id="steady"),
        pytest.param({"a": 10.0}, {"a": 30}, 3.0, {"a": 10.0}, id="steady over a longer time"),
        pytest.param({"a": 8.0}, {}, 3.0, {"a": 1.0}, id="three half-lives without any"),
        pytest.param({"a": 0.019}, {"b": 0}, 1.0, {}, id="forgotten"),
        pytest.param({"a": 1.0}, {"b": 4}, 1.0, {"a": 0.5, "b": 2.0}, id="each by itself"),
        pytest.param({"a": 1.0}, {"a": 5}, 0.0, {"a": 1.0}, id="no time has passed"),
    ],
)
def test_recent_demand(before: dict[str, float], requests: dict[str, int], elapsed_s: float, expected: dict[str, float]) -> None:
    assert recent_demand(before, requests, elapsed_s) == pytest.approx(expected)


@given(st.floats(0, 1e4), st.integers(0, 10**5), st.floats(0.01, 60))
def test_recent_demand_lies_between_what_it_was_and_what_came(before: float, requests: int, elapsed_s: float) -> None:
    rate = recent_demand({"a": before}, {"a": requests}, elapsed_s).get("a", 0.0)
    low, high = sorted((before, requests / elapsed_s))
    assert low - 0.01 <= rate <= high * (1 + 1e-9)
