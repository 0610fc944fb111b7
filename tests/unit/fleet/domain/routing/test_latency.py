from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.fleet.domain.routing.latency import LatencyDistribution, Survival

LATENCIES = st.lists(st.floats(1e-5, 1e3), min_size=1, max_size=200)
WITHIN = 1.1 + 1e-6
"""A bucket is a tenth longer than the one before."""


def distribution(answered: list[float], censored: list[float] | None = None) -> LatencyDistribution:
    made = LatencyDistribution()
    for took_s in answered:
        made.note_answer(took_s)
    for waited_s in censored or []:
        made.note_censored(waited_s)
    return made


@given(answered=LATENCIES, part=st.floats(0.01, 1.0))
def test_quantiles_are_those_of_the_answers_to_within_a_bucket(answered: list[float], part: float) -> None:
    exact = next(each for number, each in enumerate(sorted(answered), 1) if number / len(answered) >= part - 1e-9)
    estimated = distribution(answered).survival().quantile_s(part)
    assert exact / WITHIN <= estimated <= exact * WITHIN


@given(answered=LATENCIES)
def test_the_mean_is_that_of_the_answers_to_within_a_bucket(answered: list[float]) -> None:
    exact = sum(answered) / len(answered)
    assert exact * (1 - 1e-6) <= distribution(answered).survival().mean_s <= exact * WITHIN


def test_the_mean_counts_who_was_given_up() -> None:
    """One of four takes 1 s, another is given up then, and one of the two others takes 4 s: three quarters take longer than 1 s."""
    assert distribution([1.0, 4.0], [1.0, 4.0]).survival().mean_s == pytest.approx(1.0 + 0.75 * 3.0, rel=0.1)


@given(answered=LATENCIES, censored=LATENCIES)
def test_survival_falls_from_one_and_never_rises(answered: list[float], censored: list[float]) -> None:
    survival = distribution(answered, censored).survival()
    assert survival.after(0.0) <= 1.0
    assert list(survival.parts) == sorted(survival.parts, reverse=True)
    assert list(survival.times_s) == sorted(survival.times_s)
    assert all(0.0 <= part <= 1.0 for part in survival.parts)


@given(answered=LATENCIES, lost=LATENCIES)
def test_who_was_given_up_counts_as_no_shorter_than_who_was_answered_then(answered: list[float], lost: list[float]) -> None:
    """However late an answer might have come, it would have come later than it was waited for."""
    given_up, ended = distribution(answered, lost).survival(), distribution(answered + lost).survival()
    for time_s, part in zip(ended.times_s, ended.parts, strict=True):
        assert given_up.after(time_s) >= part - 1e-9


@given(answered=LATENCIES, waited=st.floats(0.0, 1.0))
def test_nothing_is_known_of_the_tail_beyond_what_was_waited_for(answered: list[float], waited: float) -> None:
    """All that last longer are given up at one time: before it the estimate is that of the whole truth."""
    given_up_s = sorted(answered)[int(waited * (len(answered) - 1))]
    seen = distribution([each for each in answered if each <= given_up_s], [given_up_s for each in answered if each > given_up_s])
    truth = distribution(answered).survival()
    for time_s in truth.times_s:
        if time_s <= given_up_s:
            assert seen.survival().after(time_s) == pytest.approx(truth.after(time_s))


def test_the_textbook_example() -> None:
    """Kaplan and Meier: answered after 1, 3 and 4, given up after 2: of the two left at 3 one ends, then the other."""
    survival = distribution([1.0, 3.0, 4.0], [2.0]).survival()
    assert [survival.after(each) for each in (0.8, 2.5, 3.5, 5.0)] == pytest.approx([1.0, 0.75, 0.375, 0.0])


def test_an_empty_one_knows_nothing() -> None:
    survival = LatencyDistribution().survival()
    assert survival == Survival([], [])
    assert survival.after(1.0) == 1.0
    assert survival.quantile_s(0.5) == inf


def test_old_latencies_are_forgotten_and_the_histogram_stays_small() -> None:
    seen = distribution([5.0] * 8_000)
    for number in range(40_000):
        seen.note_answer(0.01 + number % 10 / 1e3)
    assert seen.count <= 2_000
    assert seen.noted == 48_000
    survival = seen.survival()
    assert len(survival.times_s) < 20
    assert survival.quantile_s(0.99) < 0.03
