from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.admission.domain.deadline import ServiceTime, can_be_met

requests = st.lists(st.tuples(st.floats(0.01, 100), st.floats(1e-4, 10), st.floats(0, 1000)), min_size=1, max_size=50)


class Known(ServiceTime):
    """What is known of a model from requests that ended long after each other."""

    __slots__ = ("_now_s",)

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0

    def ended(self, cost: float, held_s: float, *, ahead: float) -> None:
        self._now_s += 2 * held_s
        self.record(cost, held_s, ahead=ahead, now_s=self._now_s)


def one_by_one(waiting: int) -> Known:
    """Model that computes one request of a unit after the other, in 0.1 s each, with so many at it."""
    service = Known()
    for _ in range(20):
        service.ended(1.0, 0.1, ahead=0.0)
    for _ in range(100):
        service.ended(1.0, 0.1 * (waiting + 1), ahead=float(waiting))
    return service


def at_once(parallel: int) -> Known:
    """Model that computes so many requests in 0.1 s, at a time."""
    service = Known()
    for ahead in range(parallel):
        for _ in range(20):
            service.ended(1.0, 0.1, ahead=float(ahead))
    return service


class TestAnswer:
    def test_nothing_is_known_before_a_request_has_ended(self) -> None:
        assert ServiceTime().answer_s(1e9, ahead=1e9) is None
        assert ServiceTime().queued_answer_s(1e9, queued=1e9, at_triton=1e9) is None
        assert ServiceTime().drained_s(1e9, at_triton=1e9) == ServiceTime().left_s(at_triton=1e9) == 0.0

    def test_the_first_request_is_believed(self) -> None:
        service = Known()
        service.ended(10.0, 0.5, ahead=0.0)
        assert service.answer_s(20.0, ahead=0.0) == pytest.approx(1.0)

    def test_a_warming_up_is_forgotten_after_a_few(self) -> None:
        service = Known()
        service.ended(1.0, 5.0, ahead=0.0)
        for _ in range(8):
            service.ended(1.0, 0.03, ahead=0.0)
        assert (service.answer_s(1.0, ahead=0.0) or 0.0) < 0.6

    def test_one_that_took_long_alone_is_forgotten_though_the_model_is_never_idle_again(self) -> None:
        service = at_once(4)
        service.ended(1.0, 100.0, ahead=0.0)
        for _ in range(100):
            service.ended(1.0, 0.1, ahead=3.0)
        assert service.answer_s(1.0, ahead=3.0) == pytest.approx(0.1, rel=1 / 3)

    @pytest.mark.parametrize("waiting", [4, 20])
    def test_one_request_after_the_other_adds_each_service_time_and_is_judged_with_caution(self, waiting: int) -> None:
        needed_s = one_by_one(waiting).answer_s(1.0, ahead=float(waiting))
        assert needed_s is not None
        assert 0.1 * (waiting + 1) <= needed_s <= 1.34 * 0.1 * (waiting + 1)

    @pytest.mark.parametrize("cost", [30.0, 0.03])
    def test_one_after_the_other_is_told_though_only_a_request_of_unknown_cost_was_alone(self, cost: float) -> None:
        service = Known()
        service.ended(1.0, 0.1, ahead=0.0)
        for number in range(100):
            waiting = 1 + number % 8
            service.ended(cost, 0.1 * (waiting + 1), ahead=cost * waiting)
        for waiting in (4, 8):
            assert service.answer_s(cost, ahead=cost * waiting) == pytest.approx(0.1 * (waiting + 1), rel=1 / 3)

    @pytest.mark.parametrize("parallel", [4, 64])
    def test_what_goes_on_at_once_adds_nothing(self, parallel: int) -> None:
        assert at_once(parallel).answer_s(1.0, ahead=100.0) == pytest.approx(0.1)

    @given(requests)
    def test_it_is_at_least_what_nothing_ahead_takes_and_grows_with_what_is(self, requests: list[tuple[float, float, float]]) -> None:
        service = Known()
        for cost, held_s, ahead in requests:
            service.ended(cost, held_s, ahead=ahead)
        needed = [service.answer_s(1.0, ahead=ahead) or 0.0 for ahead in (0.0, 1.0, 10.0)]
        assert 0.0 <= needed[0] <= needed[1] <= needed[2]
        queued = [service.queued_answer_s(1.0, queued=queued, at_triton=10.0) or 0.0 for queued in (0.0, 1.0, 10.0)]
        assert needed[2] <= queued[0] <= queued[1] <= queued[2]


class TestQueue:
    @pytest.mark.parametrize(
        ("service", "at_triton", "drained_s"),
        [
            pytest.param(one_by_one(0), 1.0, 1.0, id="one slot"),
            pytest.param(one_by_one(7), 8.0, 1.0, id="one after the other, with more slots"),
            pytest.param(at_once(4), 4.0, 0.25, id="four at a time"),
            pytest.param(at_once(1), 64.0, 1.0 / 64, id="slots that were never all used, as if they were of use"),
        ],
    )
    def test_ten_units_drain_by_littles_law(self, service: ServiceTime, at_triton: float, drained_s: float) -> None:
        assert service.drained_s(10.0, at_triton=at_triton) == pytest.approx(drained_s, rel=0.15)


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


@pytest.mark.parametrize(
    ("each_s", "instances", "at_triton", "urgent_s", "has"),
    [
        pytest.param(0.03, 1, 3, inf, False, id="keeps it busy"),
        pytest.param(0.03, 1, 12, inf, True, id="a tenth of a second waits"),
        pytest.param(0.01, 1, 8, inf, False, id="less than that waits"),
        pytest.param(0.01, 1, 8, 0.2, True, id="and the most urgent have little time"),
        pytest.param(0.01, 1, 2, 0.0, False, id="or none: still it is kept busy"),
        pytest.param(1.0, 1, 1, inf, False, id="none of a slow one waits"),
        pytest.param(1.0, 1, 2, inf, True, id="one of a slow one waits"),
        pytest.param(1.0, 4, 4, inf, False, id="none of a slow one with four instances waits"),
        pytest.param(1.0, 1, 8, inf, True, id="many of a slow one wait"),
        pytest.param(0.03, 64, 60, inf, False, id="nobody waits"),
    ],
)
def test_a_model_has_enough_once_work_waits_that_does_not_keep_it_busy(
    each_s: float, instances: int, at_triton: int, urgent_s: float, has: bool
) -> None:
    service = Known()
    for _ in range(200):
        service.ended(1.0, each_s, ahead=0.0)
        service.ended(1.0, each_s * max(1.0, at_triton / instances), ahead=at_triton - 1.0)
    for _ in range(200):
        service.ended(1.0, each_s * max(1.0, at_triton / instances), ahead=at_triton - 1.0)
    assert service.has_enough(at_triton, urgent_s) is has


def test_a_model_that_was_never_asked_has_not_enough() -> None:
    assert not ServiceTime().has_enough(100.0, inf)


def test_what_was_known_in_other_units_is_forgotten_with_one_answer() -> None:
    """The first request came before the cost of one was known, and took long."""
    known = Known()
    known.ended(1.0, 9.0, ahead=0.0)
    known.ended(1000.0, 1.0, ahead=1000.0)
    answer_s = known.answer_s(1000.0, ahead=1000.0)
    assert answer_s is not None
    assert answer_s <= 10.0


class TestStall:
    """A request that takes far longer than the others, sent at 0 s."""

    STALL_S = 20.0

    def stalled(self, before: int = 0) -> ServiceTime:
        """Model of which some requests have ended before, in 1 ms each, when the one that stalled it ends."""
        service = ServiceTime()
        for number in range(before):
            service.record(1.0, 0.001, ahead=0.0, now_s=number / 100 - 10.0)
        assert not service.is_in_doubt(0.0)
        service.record(1.0, self.STALL_S, ahead=0.0, now_s=self.STALL_S)
        return service

    @pytest.mark.parametrize("before", [0, 50])
    def test_what_it_held_up_shows_nothing_and_the_first_sent_since_shows_all(self, before: int) -> None:
        service = self.stalled(before)
        for number in range(1, 256):
            now_s = self.STALL_S + number / 1000
            service.record(1.0, now_s - 1.0, ahead=float(number), now_s=now_s)
            assert service.is_in_doubt(now_s)
        service.record(1.0, 0.002, ahead=10.0, now_s=self.STALL_S + 0.5)
        assert not service.is_in_doubt(self.STALL_S + 0.5)
        service.record(1.0, self.STALL_S, ahead=20.0, now_s=self.STALL_S + 0.51)
        assert (service.answer_s(1.0, ahead=10.0) or 0.0) <= 4 / 3 * 0.003

    @pytest.mark.parametrize("before", [0, 50])
    def test_a_model_that_is_slow_for_good_is_believed_when_nothing_else_has_ended_for_a_while(self, before: int) -> None:
        service = self.stalled(before)
        assert service.is_in_doubt(self.STALL_S * 1.2)
        assert not service.is_in_doubt(self.STALL_S * 1.3)
        for number in range(2, 30):
            now_s = self.STALL_S * number
            service.record(1.0, now_s, ahead=number - 1.0, now_s=now_s)
            assert not service.is_in_doubt(now_s)
        assert (service.answer_s(1.0, ahead=2.0) or 0.0) >= self.STALL_S

    @pytest.mark.parametrize("times", [4, 12])
    def test_one_that_takes_a_few_times_as_long_is_no_stall(self, times: int) -> None:
        service = one_by_one(4)
        service.record(1.0, 0.5 * times, ahead=4.0, now_s=1000.0)
        assert not service.is_in_doubt(1000.0)

    def test_one_that_takes_twenty_times_as_long_as_an_idle_model_is_a_stall(self) -> None:
        service = one_by_one(0)
        service.record(1.0, 20 * 0.1, ahead=0.0, now_s=1000.0)
        assert service.is_in_doubt(1000.0)

    def test_work_that_waits_its_turn_is_no_stall(self) -> None:
        """One after the other, in the time that is known, but a hundred were sent at once."""
        service = one_by_one(1)
        service.record(1.0, 10.0, ahead=100.0, now_s=1000.0)
        assert not service.is_in_doubt(1000.0)


def test_costs_that_are_told_by_another_unit_are_believed_at_once_also_after_a_crowd() -> None:
    service = ServiceTime()
    for number in range(12):  # a crowd of which nobody comes alone, when a request costs 1
        service.record(1.0, 0.25, ahead=float(number + 1), now_s=100.0)
    service.record(60.0, 0.04, ahead=0.0, now_s=200.0)
    assert service.answer_s(60.0, ahead=0.0) == pytest.approx(0.04)
    assert service.answer_s(60.0, ahead=60.0) == pytest.approx(0.04, rel=1.0)
