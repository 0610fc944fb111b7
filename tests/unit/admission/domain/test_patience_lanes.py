from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.admission.domain.patience_lanes import PatienceLanes, lane_of


@pytest.mark.parametrize(
    ("allowed_s", "lane"),
    [
        pytest.param(-1.0, 0, id="it is over"),
        pytest.param(0.1, 0, id="a tenth"),
        pytest.param(0.5, 1, id="half a second"),
        pytest.param(1.0, 2, id="one second"),
        pytest.param(0.98, 2, id="one second, of which some has gone by elsewhere"),
        pytest.param(10.0, 3, id="ten"),
        pytest.param(30.0, 4, id="thirty"),
        pytest.param(float("inf"), 5, id="no deadline"),
    ],
)
def test_the_lane_of_a_time(allowed_s: float, lane: int) -> None:
    assert lane_of(allowed_s) == lane


def lanes_of(numbers: str) -> PatienceLanes[int]:
    lanes = PatienceLanes[int]()
    for item, number in enumerate(numbers):
        lanes.push(item, int(number), 1.0)
    return lanes


class TestOrder:
    def test_lanes_take_turns_the_most_urgent_first(self) -> None:
        lanes = lanes_of("3331")
        assert [lanes.pop()[0] for _ in range(4)] == [3, 0, 1, 2]

    def test_each_lane_gets_as_much_of_what_is_done(self) -> None:
        lanes = PatienceLanes[str]()
        for number in range(30):
            lanes.push(f"short {number}", 0, 3.0)
            lanes.push(f"long {number}", 4, 1.0)
        got = [lanes.pop() for _ in range(24)]
        assert sum(cost for item, cost in got if item.startswith("short")) == pytest.approx(18.0)

    def test_one_that_comes_again_and_again_does_not_always_go_first(self) -> None:
        lanes = lanes_of("4" * 20)
        got = []
        for number in range(100, 110):
            lanes.push(number, 0, 1.0)
            got.append(lanes.pop()[0])
            got.append(lanes.pop()[0])
        assert sum(item < 100 for item in got) == 10

    def test_one_that_was_away_has_saved_nothing_up(self) -> None:
        lanes = lanes_of("4" * 50)
        for _ in range(20):
            lanes.pop()
        for number in range(100, 120):
            lanes.push(number, 0, 1.0)
        assert sum(lanes.pop()[0] >= 100 for _ in range(20)) in (10, 11)

    def test_one_whose_callers_leave_gets_the_less(self) -> None:
        lanes = lanes_of("0" * 200 + "4" * 200)
        for _ in range(200):
            lanes.ended(0, 1.0, has_left=True)
            lanes.ended(4, 1.0, has_left=False)
        assert 1 <= sum(lanes.pop()[0] < 200 for _ in range(100)) <= 5
        assert lanes.ahead(0) > 300
        for _ in range(200):
            lanes.ended(0, 1.0, has_left=False)
        for _ in range(40):
            lanes.pop()
        assert 9 <= sum(lanes.pop()[0] < 200 for _ in range(20)) <= 11

    def test_the_end_of_one_that_nobody_knows_is_ignored(self) -> None:
        lanes_of("0").ended(3, 1.0, has_left=True)


class TestRoom:
    @pytest.mark.parametrize(
        ("numbers", "comes", "loses"),
        [
            pytest.param("4444", 0, 3, id="the newest of the longest lane"),
            pytest.param("4444", 4, None, id="the one that comes, where its lane is the longest"),
            pytest.param("4400", 0, None, id="or would be"),
            pytest.param("444400", 0, 3, id="not the one that comes, where it would be no longer"),
        ],
    )
    def test_who_makes_room(self, numbers: str, comes: int, loses: int | None) -> None:
        assert lanes_of(numbers).displaced_by(comes) == loses

    def test_of_nobody_nobody_does(self) -> None:
        assert PatienceLanes[int]().displaced_by(0) is None

    def test_for_another_tenant_the_newest_of_the_longest(self) -> None:
        assert lanes_of("40440").newest() == 3


class TestAhead:
    def test_in_a_single_lane_all_of_them(self) -> None:
        assert lanes_of("444").ahead(4) == 3.0

    def test_none_is_ahead_of_the_first_of_its_kind(self) -> None:
        assert lanes_of("444").ahead(0) == 0.0

    def test_none_is_ahead_where_there_is_none(self) -> None:
        assert PatienceLanes[int]().ahead(0) == 0.0

    def test_what_other_lanes_get_meanwhile_counts_though_it_has_not_come_yet(self) -> None:
        """One of each comes for each two that are served."""
        lanes, number = lanes_of("4" * 40), 100
        for _ in range(200):
            lanes.push(number, 0, 1.0)
            lanes.push(number + 1, 4, 1.0)
            number += 2
            lanes.pop()
            lanes.pop()
        assert lanes.ahead(4) == pytest.approx(80.0, abs=4.0)

    def test_a_lane_that_gets_little_slows_the_others_down_little(self) -> None:
        lanes, number = lanes_of("4" * 40), 100
        for turn in range(500):
            if turn % 10 == 0:
                lanes.push(number + 1, 0, 1.0)
                lanes.pop()
            lanes.push(number, 4, 1.0)
            number += 2
            lanes.pop()
        assert lanes.ahead(4) == pytest.approx(44.0, abs=4.0)

    def test_a_lane_that_nobody_uses_any_more_is_forgotten(self) -> None:
        lanes = lanes_of("0" * 20 + "4" * 20)
        for number in range(100, 400):
            lanes.push(number, 4, 1.0)
            lanes.pop()
        assert lanes.ahead(4) == pytest.approx(len(lanes), rel=0.1)


@given(st.lists(st.tuples(st.sampled_from(["push", "pop", "remove"]), st.integers(0, 5), st.floats(0.01, 100)), max_size=100))
def test_whatever_comes_and_leaves_none_is_lost_and_none_overtaken_in_its_lane(events: list[tuple[str, int, float]]) -> None:
    lanes, waiting = PatienceLanes[int](), dict[int, tuple[int, float]]()
    for item, (verb, number, cost) in enumerate(events):
        if verb == "push":
            lanes.push(item, number, cost)
            waiting[item] = number, cost
        elif waiting and verb == "pop":
            following = lanes.next_cost
            got, cost = lanes.pop()
            lane, expected = waiting.pop(got)
            assert cost == expected == following
            assert not [other for other, (of, _) in waiting.items() if of == lane and other < got]
        elif waiting:
            chosen = sorted(waiting)[number % len(waiting)]
            assert lanes.remove(chosen) == waiting.pop(chosen)[1]
        assert len(lanes) == len(waiting)
        assert lanes.cost == pytest.approx(sum(cost for _, cost in waiting.values()), abs=1e-6)
        assert lanes.ahead(number) >= 0.0
    assert sorted(lanes.pop()[0] for _ in range(len(lanes))) == sorted(waiting)
