from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from control_plane.core.algorithms.silence import SilenceDetector, SilenceLimits

ON_TIME, LATE = 0.01, 0.2


def test_two_misses_in_a_row_begin_a_silence_and_one_answer_ends_it() -> None:
    detector = SilenceDetector()
    assert not detector.heard(1.0)
    assert not detector.missed(late_s=ON_TIME)
    assert detector.missed(late_s=ON_TIME)
    assert detector.is_silent
    assert detector.since_s == 1.0
    assert not detector.missed(late_s=ON_TIME), "it began before"
    assert detector.heard(6.0)
    assert not detector.is_silent
    assert not detector.heard(6.25), "it ended before"


def test_misses_with_an_answer_between_them_do_not_add_up() -> None:
    detector = SilenceDetector()
    for now_s in range(10):
        assert not detector.missed(late_s=ON_TIME)
        detector.heard(float(now_s))
    assert not detector.is_silent


def test_a_miss_does_not_count_if_the_listener_was_late_itself() -> None:
    detector = SilenceDetector()
    for _ in range(10):
        assert not detector.missed(late_s=ON_TIME)
        assert not detector.missed(late_s=LATE)
    assert not detector.missed(late_s=ON_TIME)
    assert detector.missed(late_s=ON_TIME)


def test_a_late_listener_does_not_end_a_silence() -> None:
    detector = SilenceDetector()
    detector.missed(late_s=ON_TIME)
    detector.missed(late_s=ON_TIME)
    detector.missed(late_s=LATE)
    assert detector.is_silent


@given(st.lists(st.sampled_from(("heard", "missed", "late"))), st.integers(1, 5))
def test_it_is_silent_exactly_after_enough_misses_in_a_row_until_an_answer(beats: list[str], misses: int) -> None:
    detector, in_a_row, is_silent = SilenceDetector(SilenceLimits(max_misses=misses)), 0, False
    for beat in beats:
        changed = detector.heard(0.0) if beat == "heard" else detector.missed(late_s=LATE if beat == "late" else ON_TIME)
        in_a_row = in_a_row + 1 if beat == "missed" else 0
        before, is_silent = is_silent, beat != "heard" and (is_silent or in_a_row >= misses)
        assert detector.is_silent is is_silent
        assert changed is (before is not is_silent)
