from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.cache.domain.lookup_worth import LookupPolicy, RunningMedian


def known(answer_s: float, hit_ratio: float = 1.0) -> LookupPolicy:
    worth = LookupPolicy()
    for _ in range(9):
        worth.answered(answer_s)
    worth.hit_ratio = hit_ratio
    return worth


@pytest.mark.parametrize(
    ("answer_s", "hit_ratio", "computing_s", "patience_s"),
    [
        pytest.param(0.0005, 1.0, 0.010, 0.002, id="quick, a fifth of computing"),
        pytest.param(0.0005, 1.0, 1.0, 0.2, id="quick, and computing takes long"),
        pytest.param(0.0005, 1.0, 0.001, 0.002, id="never less than a loop needs"),
        pytest.param(0.008, 1.0, 0.013, 0.013, id="on a slow host, for as long as computing"),
        pytest.param(0.008, 1.0, 0.030, 0.016, id="twice the usual answer"),
        pytest.param(0.008, 0.7, 0.013, 0.013, id="most are found"),
        pytest.param(0.008, 0.5, 0.013, None, id="too few are found for what it costs"),
        pytest.param(0.008, 0.0, 0.040, 0.016, id="nothing is found, but it costs a fifth"),
        pytest.param(0.008, 0.0, 0.039, None, id="nothing is found, and it costs more"),
        pytest.param(0.013, 1.0, 0.0129, None, id="computing is quicker"),
        pytest.param(0.040, 1.0, 0.5, 0.1, id="slow, and computing is slower by far"),
    ],
)
def test_how_long_a_caller_waits(answer_s: float, hit_ratio: float, computing_s: float, patience_s: float | None) -> None:
    assert known(answer_s, hit_ratio).patience_s(computing_s) == (None if patience_s is None else pytest.approx(patience_s))


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 10))
def test_nobody_waits_longer_than_for_computing(answer_s: float, hit_ratio: float, computing_s: float) -> None:
    patience_s = known(answer_s, hit_ratio).patience_s(computing_s)
    assert patience_s is None or patience_s <= max(computing_s, 0.002)


def test_at_first_it_is_asked() -> None:
    assert LookupPolicy().patience_s(0.0) == 0.002
    assert LookupPolicy().patience_s(0.025) == pytest.approx(0.005)


def test_single_answers_neither_close_nor_open_it() -> None:
    worth = known(0.001)
    for _ in range(4):
        worth.answered(10.0)
    assert worth.answer_s == 0.001
    worth.answered(10.0)
    assert worth.answer_s == 10.0
    for _ in range(5):
        worth.answered(0.001)
    assert worth.answer_s == 0.001


def test_what_is_found_is_learned_and_trials_with_nobodys_key_say_nothing_of_it() -> None:
    worth = LookupPolicy()
    for _ in range(100):
        worth.answered(0.001, hits=0, keys=1)
    assert worth.hit_ratio < 0.05
    worth.answered(0.001)
    for _ in range(32):
        worth.answered(0.001, hits=1, keys=1)
    assert 0.6 < worth.hit_ratio < 0.7
    worth.answered(0.001, hits=0, keys=1000)
    assert worth.hit_ratio < 0.03


def test_another_connection_is_given_a_chance_at_once() -> None:
    worth = known(10.0, 0.3)
    worth.forget_latencies()
    assert worth.patience_s(0.01) is not None
    assert worth.hit_ratio == 0.3


def test_the_usual_time_of_nothing_is_none() -> None:
    assert RunningMedian().median_s == 0.0
