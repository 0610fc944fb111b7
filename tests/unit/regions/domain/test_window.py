from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.regions.domain.window import FIRST_PAUSE_S, LONGEST_PAUSE_S, Window


def test_a_few_may_be_sent_at_first_and_more_with_each_answer() -> None:
    window = Window()
    assert [window.has_room(count, 0.0) for count in (3, 4)] == [True, False]
    window.answered()
    assert [window.has_room(count, 0.0) for count in (4, 5)] == [True, False]


def test_one_that_refuses_is_left_alone_for_a_moment_which_doubles_until_it_answers() -> None:
    window, now_s, pauses = Window(), 0.0, []
    for _ in range(8):
        window.refused(now_s)
        pauses.append(window.full_until_s - now_s)
        assert not window.has_room(0, window.full_until_s - 1e-6)
        now_s = window.full_until_s
        assert window.has_room(0, now_s), "one is sent all the same, to see"
    assert pauses[:3] == pytest.approx([FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S])
    assert pauses[-1] == pytest.approx(LONGEST_PAUSE_S)
    window.answered()
    window.refused(now_s)
    assert window.full_until_s - now_s == pytest.approx(FIRST_PAUSE_S)


def test_several_that_are_refused_at_once_count_as_one() -> None:
    window = Window(size=100.0)
    for _ in range(10):
        window.refused(1.0)
    assert (window.size, window.full_until_s) == (50.0, 1.0 + FIRST_PAUSE_S)


@given(st.lists(st.booleans(), max_size=300))
def test_it_stays_within_its_bounds_whatever_comes(answers: list[bool]) -> None:
    window, now_s = Window(), 0.0
    for is_answered in answers:
        now_s += 0.01
        window.answered() if is_answered else window.refused(now_s)
        assert 1.0 <= window.size <= 256.0
        assert window.full_until_s <= now_s + LONGEST_PAUSE_S
