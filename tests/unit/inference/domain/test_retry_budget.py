from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.inference.domain.retry_budget import SHARE, SPARE_PER_S, RetryBucket, ServerLoss

STEPS = st.lists(
    st.tuples(st.floats(0.0, 100.0), st.floats(0.0, 1e4), st.integers(0, 500), st.lists(st.floats(0.0, 1e3), max_size=20)),
    max_size=30,
)


def empty(*, processes: int = 1) -> RetryBucket:
    return RetryBucket().refilled(0.0, 0, 0.0, processes=processes)


@given(steps=STEPS, processes=st.integers(1, 8))
def test_never_more_than_a_tenth_is_sent_again_but_for_a_request_a_second(
    steps: list[tuple[float, float, int, list[float]]], processes: int
) -> None:
    bucket, now_s, asked, sent, spent, spare = empty(processes=processes), 0.0, (0.0, 0), 0, 0.0, 0
    for past_s, units, requests, wanted in steps:
        now_s, asked = now_s + past_s, (asked[0] + units, asked[1] + requests)
        bucket = bucket.refilled(units, requests, now_s, processes=processes)
        for each in wanted:
            after = bucket.spent(each)
            if after is None:
                continue
            if after.spare < bucket.spare:
                spare += 1
            else:
                spent, sent = spent + each, sent + 1
            bucket = after
    assert spent <= SHARE * asked[0] + 1e-6 * (1.0 + asked[0])
    assert sent <= SHARE * asked[1] + 1e-6
    assert spare <= 1 + SPARE_PER_S * now_s / processes + 1e-6


def test_what_one_process_of_four_spares_is_a_quarter_of_a_request_a_second() -> None:
    bucket = empty(processes=4).spent(5.0)
    assert bucket is not None
    assert bucket.refilled(0.0, 0, 3.0, processes=4).spent(5.0) is None
    assert bucket.refilled(0.0, 0, 4.0, processes=4).spent(5.0) is not None


@given(steps=STEPS, reserve=st.floats(0.01, 1.0))
def test_who_leaves_a_reserve_leaves_it_of_all_that_there_would_be(
    steps: list[tuple[float, float, int, list[float]]], reserve: float
) -> None:
    bucket, idle, now_s = empty(), empty(), 0.0
    for past_s, units, requests, wanted in steps:
        now_s += past_s
        bucket = bucket.refilled(units, requests, now_s, processes=1)
        idle = idle.refilled(units, requests, now_s, processes=1)
        for each in wanted:
            bucket = bucket.spent(each, reserve=reserve) or bucket
        assert bucket.units >= reserve * idle.units - 1e-6 * (1.0 + idle.units)
        assert bucket.requests >= reserve * idle.requests - 1e-6 * (1.0 + idle.requests)
        assert bucket.spare == idle.spare


def test_what_leaves_a_reserve_has_the_rest_and_stops_where_others_have_taken_it() -> None:
    full = empty().refilled(1000.0, 1000, 0.0, processes=1)
    bucket, sent = full, 0
    while after := bucket.spent(1.0, reserve=0.25):
        bucket, sent = after, sent + 1
    assert sent == 75
    for _ in range(75):
        full = full.spent(1.0) or full
    assert (full.spent(1.0, reserve=0.25), full.spent(1.0) is None) == (None, False)


def test_what_nobody_takes_is_forgotten_by_and_by() -> None:
    bucket = empty()
    for second in range(1, 601):
        bucket = bucket.refilled(100.0, 10, float(second), processes=1)
    assert bucket.units == pytest.approx(433, abs=10), "4.3 s of what is asked for"
    assert bucket.refilled(0.0, 0, 630.0, processes=1).units == pytest.approx(bucket.units / 2)


def test_a_debt_is_paid_back_before_anything_is_spent_again() -> None:
    bucket = empty().spent(1.0)
    assert bucket is not None
    assert bucket.spent(50.0) is None
    owing = bucket.spent(50.0, may_owe=True)
    assert owing is not None
    later = owing.refilled(400.0, 40, 0.5, processes=1)
    assert later.units == pytest.approx(-10.0, abs=0.5)
    assert later.spent(1.0) is None
    assert later.refilled(200.0, 20, 0.5, processes=1).spent(1.0) is not None


def test_requests_count_where_the_costs_of_a_model_are_not_known_yet() -> None:
    bucket = empty().spent(1.0)
    assert bucket is not None
    bucket = bucket.refilled(1000.0, 10, 0.0, processes=1)
    once = bucket.spent(0.1)
    assert once is not None
    assert once.spent(0.1) is None


def test_one_server_that_dies_is_paid_for_in_debt_and_not_the_next_at_once() -> None:
    loss = ServerLoss().after("s0", began_s=1.0, now_s=2.0)
    assert loss is not None
    assert loss.after("s0", began_s=1.9, now_s=2.1) is loss, "broken off by the same death"
    assert loss.after("s0", began_s=2.05, now_s=2.1) is None, "sent to a server that was dead"
    assert loss.after("s1", began_s=1.9, now_s=2.2) is None, "an outage"
    assert loss.after("s1", began_s=1.9, now_s=12.0) == ServerLoss("s1", 12.0)
