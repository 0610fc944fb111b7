"""Margins for latency budgets: what is late, and how often a model that seems too slow is tried."""

from __future__ import annotations

import random

import pytest

from control_plane.inference.domain.latency_margin import LatencyMargin


def test_a_model_of_which_nothing_is_known_fits() -> None:
    assert LatencyMargin().fits(0.0, 0.001)


@pytest.mark.parametrize("spread", [0.05, 0.5, 1.0])
def test_nine_of_ten_answers_are_within_a_budget_that_just_fits(spread: float) -> None:
    margin, draw = LatencyMargin(), random.Random(7)
    for _ in range(2_000):
        margin.answered(0.1, 0.1 * draw.lognormvariate(0.0, spread))
    late = sum(0.1 * draw.lognormvariate(0.0, spread) > margin.needed_s(0.1) for _ in range(10_000))
    assert margin.fits(0.1, margin.needed_s(0.1))
    assert 500 < late < 2_000


@pytest.mark.parametrize(("expected_s", "one_in"), [(0.11, 26), (1.6, 26), (3.2, 51), (16.0, 251)])
def test_one_that_seems_too_slow_is_tried_now_and_then_the_slower_the_less(expected_s: float, one_in: int) -> None:
    margin = LatencyMargin()
    for _ in range(3):
        tries = [margin.fits(expected_s, 0.1) for _ in range(one_in)]
        assert sum(tries) == 1
        assert tries[-1]


def test_one_that_is_quick_again_is_asked_again() -> None:
    margin = LatencyMargin()
    for _ in range(100):
        margin.answered(0.01, 1.0)
    assert not margin.fits(0.01, 0.1)
    for _ in range(100):
        if margin.fits(0.01, 0.1):
            margin.answered(0.01, 0.009)
    assert all(margin.fits(0.01, 0.1) for _ in range(10))


def test_one_that_answers_late_again_and_again_gets_a_tenth_of_the_requests() -> None:
    margin, late = LatencyMargin(), 0
    for _ in range(2_000):
        if margin.fits(0.05, 0.1):
            margin.answered(0.05, 0.2)
            late += 1
    assert 100 < late < 250


def test_what_was_not_expected_teaches_nothing() -> None:
    margin = LatencyMargin()
    margin.answered(0.0, 100.0)
    assert margin.fits(0.1, 0.1)
