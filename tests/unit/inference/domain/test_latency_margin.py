"""Margins for latency budgets: what is late, and what is expected after that."""

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


def test_a_margin_shrinks_while_it_keeps_requests_away() -> None:
    margin = LatencyMargin()
    for _ in range(100):
        margin.answered(0.01, 1.0)
    assert not margin.fits(0.01, 0.1)
    tries = [margin.fits(0.01, 0.1) for _ in range(300)]
    assert 50 < tries.index(True) < 100
    assert not any(margin.fits(0.11, 0.1) for _ in range(1000)), "not below what is expected"


def test_what_was_not_expected_teaches_nothing() -> None:
    margin = LatencyMargin()
    margin.answered(0.0, 100.0)
    assert margin.fits(0.1, 0.1)
