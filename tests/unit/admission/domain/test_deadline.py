from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.admission.domain.deadline import ServiceRate, can_be_met, time_needed_s

requests = st.lists(st.tuples(st.floats(0.01, 100), st.floats(1e-4, 10)), min_size=1, max_size=50)


def pace_of(*requests: tuple[float, float]) -> ServiceRate:
    pace = ServiceRate()
    for cost, held_s in requests:
        pace = pace.after(cost, held_s)
    return pace


class TestPace:
    def test_the_first_request_is_believed(self) -> None:
        assert pace_of((10.0, 0.5)) == ServiceRate(10.0, 0.5)

    def test_a_model_that_became_slower_is_known_for_it_after_some_hundred_requests(self) -> None:
        pace = pace_of(*[(10.0, 0.1)] * 100, *[(10.0, 0.4)] * 100)
        assert pace.held_s == pytest.approx(0.4, rel=0.01)

    @given(requests)
    def test_it_lies_within_what_was_measured(self, requests: list[tuple[float, float]]) -> None:
        pace, costs, held = pace_of(*requests), [cost for cost, _ in requests], [held_s for _, held_s in requests]
        assert min(costs) * 0.999 <= pace.cost <= max(costs) * 1.001
        assert min(held) * 0.999 <= pace.held_s <= max(held) * 1.001


class TestTimeNeeded:
    @pytest.mark.parametrize(
        ("ahead", "cost", "slots", "needed_s"),
        [
            pytest.param(0.0, 10.0, 1, 0.2, id="one slot has to come free, then it runs itself"),
            pytest.param(90.0, 10.0, 1, 1.1, id="behind nine others"),
            pytest.param(90.0, 10.0, 10, 0.2, id="behind nine others with ten slots"),
            pytest.param(0.0, 0.0, 4, 0.0, id="nothing"),
        ],
    )
    def test_by_littles_law(self, ahead: float, cost: float, slots: int, needed_s: float) -> None:
        pace = ServiceRate(cost=20.0, held_s=0.2)
        assert time_needed_s(pace, ahead=ahead, cost=cost, slots=slots) == pytest.approx(needed_s)

    def test_nothing_is_known_before_a_request_has_ended(self) -> None:
        assert time_needed_s(ServiceRate(), ahead=1e9, cost=1e9, slots=1) is None


@pytest.mark.parametrize(
    ("needed_s", "can"),
    [
        pytest.param(None, True, id="not known"),
        pytest.param(5.0, True, id="just"),
        pytest.param(5.1, False, id="just not"),
    ],
)
def test_meeting_a_deadline(needed_s: float | None, can: bool) -> None:
    assert can_be_met(15.0, now_s=10.0, needed_s=needed_s) is can
