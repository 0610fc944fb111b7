from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.admission.domain.rate_limit import Draw, RateLimit, RateState, admit, draw, limit_fields, part_of_limit

NOW_S = 1e6
"""Clock of a machine that has run for eleven days: large enough for rounding errors to show."""

rates = st.floats(0.01, 1e4)
bursts = st.integers(1, 8)
gaps_s = st.lists(st.just(0.0) | st.floats(0, 5), min_size=1, max_size=60)


def admitted_at_once(state: RateState, limit: RateLimit, now_s: float) -> int:
    count = 0
    while (decision := admit(state, limit, now_s)).is_admitted:
        state, count = decision.state, count + 1
    return count


class TestABucket:
    def test_a_full_one_lets_its_burst_through_and_says_what_is_left(self) -> None:
        limit, state, left = RateLimit(10.0, 3), RateState(), []
        for _ in range(3):
            decision = admit(state, limit, NOW_S)
            assert decision.is_admitted
            state = decision.state
            left.append((decision.remaining, round(decision.reset_s, 6)))
        assert left == [(2, 0.1), (1, 0.2), (0, 0.3)]

    def test_an_empty_one_refuses_and_says_when_to_come_back(self) -> None:
        limit = RateLimit(10.0, 1)
        decision = admit(admit(RateState(), limit, NOW_S).state, limit, NOW_S + 0.025)
        assert not decision.is_admitted
        assert decision.remaining == 0
        assert decision.retry_after_s == pytest.approx(0.075)

    def test_what_is_refused_does_not_count(self) -> None:
        limit = RateLimit(10.0, 1)
        state = admit(RateState(), limit, NOW_S).state
        assert all(admit(state, limit, NOW_S + 0.05).state == state for _ in range(100))
        assert admit(state, limit, NOW_S + 0.1).is_admitted

    def test_it_never_holds_more_than_its_burst(self) -> None:
        limit = RateLimit(10.0, 3)
        state = admit(RateState(), limit, NOW_S).state
        assert admitted_at_once(state, limit, NOW_S + 3600.0) == 3

    @pytest.mark.parametrize("rate", [0.0, -1.0])
    def test_no_rate_at_all_refuses_everything(self, rate: float) -> None:
        decision = admit(RateState(), RateLimit(rate, 5), NOW_S)
        assert not decision.is_admitted
        assert decision.retry_after_s == 3600.0

    def test_half_of_a_limit_leaves_a_bucket_as_full_as_it_was(self) -> None:
        whole, half = RateLimit(10.0, 10), RateLimit(5.0, 5)
        state = RateState()
        for _ in range(6):
            state = admit(state, whole, NOW_S).state
        assert admitted_at_once(state, whole, NOW_S) == 4
        assert admitted_at_once(state, half, NOW_S) == 2


@given(rate=rates, burst=bursts, gaps=gaps_s)
def test_no_span_of_time_lets_more_through_than_its_burst_and_rate(rate: float, burst: int, gaps: list[float]) -> None:
    limit, state, now_s, admitted = RateLimit(rate, burst), RateState(), NOW_S, list[float]()
    for gap in gaps:
        now_s += gap / rate
        decision = admit(state, limit, now_s)
        state = decision.state
        admitted += [now_s] if decision.is_admitted else []
    for first in range(len(admitted)):
        for last in range(first, len(admitted)):
            assert last - first + 1 <= burst + rate * (admitted[last] - admitted[first]) + 0.01


@given(rate=rates, burst=bursts, count=st.integers(1, 200))
def test_who_keeps_to_the_rate_is_never_refused(rate: float, burst: int, count: int) -> None:
    state = RateState()
    for number in range(count):
        decision = admit(state, RateLimit(rate, burst), NOW_S + number / rate)
        assert decision.is_admitted
        state = decision.state


@given(rate=rates, burst=bursts, gaps=gaps_s)
def test_what_a_decision_tells_is_true(rate: float, burst: int, gaps: list[float]) -> None:
    limit, state, now_s = RateLimit(rate, burst), RateState(), NOW_S
    for gap in gaps:
        now_s += gap / rate
        decision = admit(state, limit, now_s)
        state = decision.state
        assert admitted_at_once(state, limit, now_s) == decision.remaining
        assert admitted_at_once(state, limit, now_s + decision.reset_s) == burst
        if not decision.is_admitted:
            assert admit(state, limit, now_s + decision.retry_after_s).is_admitted
            assert not admit(state, limit, now_s + decision.retry_after_s - 0.01 / rate).is_admitted


class TestDrawing:
    def test_tokens_are_granted_as_far_as_there_are_any(self) -> None:
        limit = RateLimit(10.0, 5)
        state, found = draw(RateState(), limit, NOW_S, want=3, spent=0)
        assert found == Draw(3, pytest.approx(0.3))
        state, found = draw(state, limit, NOW_S, want=3, spent=0)
        assert found == Draw(2, pytest.approx(0.5))
        state, found = draw(state, limit, NOW_S + 0.1, want=3, spent=0)
        assert found == Draw(1, pytest.approx(0.5))

    def test_what_was_spent_unasked_is_owed_but_no_more_than_another_burst(self) -> None:
        limit = RateLimit(10.0, 5)
        assert draw(RateState(), limit, NOW_S, want=0, spent=4)[1] == Draw(0, pytest.approx(0.4))
        assert draw(RateState(), limit, NOW_S, want=1, spent=7)[1] == Draw(0, pytest.approx(0.7))
        assert draw(RateState(), limit, NOW_S, want=1, spent=1000)[1] == Draw(0, pytest.approx(1.0))

    def test_what_is_given_back_is_there_again_and_never_more_than_the_burst(self) -> None:
        limit = RateLimit(10.0, 5)
        state, _ = draw(RateState(), limit, NOW_S, want=5, spent=0)
        assert draw(state, limit, NOW_S, want=9, spent=-2)[1] == Draw(2, pytest.approx(0.5))
        assert draw(state, limit, NOW_S, want=9, spent=-50)[1] == Draw(5, pytest.approx(0.5))

    def test_of_a_time_that_is_far_to_come_the_clock_was_put_back(self) -> None:
        assert draw(RateState(NOW_S + 1e6), RateLimit(10.0, 5), NOW_S, want=1, spent=0)[1] == Draw(0, pytest.approx(1.0))

    @given(rate=rates, burst=bursts, gaps=gaps_s)
    def test_one_by_one_it_is_the_same_as_deciding_on_requests(self, rate: float, burst: int, gaps: list[float]) -> None:
        limit, now_s, alone, drawn_from = RateLimit(rate, burst), NOW_S, RateState(), RateState()
        for gap in gaps:
            now_s += gap / rate
            decision = admit(alone, limit, now_s)
            drawn_from, found = draw(drawn_from, limit, now_s, want=1, spent=0)
            alone = decision.state
            assert decision.is_admitted == bool(found.granted)


@pytest.mark.parametrize(
    ("rate", "burst", "share", "expected"),
    [
        pytest.param(20.0, None, 1.0, RateLimit(20.0, 20.0), id="a burst of one second's worth"),
        pytest.param(0.2, None, 1.0, RateLimit(0.2, 1.0), id="of one request at least"),
        pytest.param(20.0, 100, 0.25, RateLimit(5.0, 25.0), id="a part of both"),
        pytest.param(20.0, 2, 0.25, RateLimit(5.0, 1.0), id="a part of a small burst still lets requests through"),
        pytest.param(20.0, 0, 1.0, RateLimit(20.0, 1.0), id="a burst of none is one request at a time"),
    ],
)
def test_part_of_a_limit(rate: float, burst: int | None, share: float, expected: RateLimit) -> None:
    assert part_of_limit(rate, burst, share=share) == expected


def test_fields_of_an_answer_are_whole_numbers_and_promise_nothing_too_early() -> None:
    assert limit_fields(limit=12.5, remaining=3.9, reset_s=0.01) == (
        ("RateLimit-Limit", "12"),
        ("RateLimit-Remaining", "3"),
        ("RateLimit-Reset", "1"),
    )
