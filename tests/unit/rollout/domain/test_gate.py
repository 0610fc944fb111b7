from __future__ import annotations

import random
from math import comb, exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.rollout.domain.gate import ODDS_RATIOS, Gate, _log_normalisers

ALPHA = 0.01


def outcomes(seed: int, count: int, *, share: float, stable_rate: float, canary_rate: float) -> Gate:
    """A gate after so many samples, or where it failed."""
    drawn, gate = random.Random(seed), Gate()
    for number in range(count):
        is_stable = drawn.random() >= share
        gate.add(is_stable=is_stable, is_bad=drawn.random() < (stable_rate if is_stable else canary_rate))
        if number % 50 == 49:
            gate.close_block()
            if gate.has_failed(ALPHA):
                break
    return gate


@given(st.integers(1, 30), st.integers(1, 30), st.data())
def test_the_evidence_of_a_block_is_one_on_average_if_both_arms_are_alike(canary: int, stable: int, data: st.DataObject) -> None:
    bad = data.draw(st.integers(0, canary + stable))
    mean = 0.0
    for of_canary in range(max(0, bad - stable), min(canary, bad) + 1):
        gate = Gate()
        gate.add_block(canary, of_canary, stable, bad - of_canary)
        mean += comb(canary, of_canary) * comb(stable, bad - of_canary) / comb(canary + stable, bad) * exp(gate.log_evidence)
    assert mean == pytest.approx(1.0, rel=1e-9)


def test_false_alarms_are_rarer_than_alpha_however_often_one_looks() -> None:
    failed = sum(outcomes(seed, 1500, share=0.2, stable_rate=0.1, canary_rate=0.1).has_failed(0.05) for seed in range(300))
    assert failed <= 0.05 * 300 + 3 * (0.05 * 0.95 * 300) ** 0.5


def test_rates_that_rise_while_the_canary_gets_more_are_no_evidence() -> None:
    """Simpson's paradox: pooled, the canary looks six times as bad."""
    gate = Gate()
    for canary, stable, rate in ((10, 990, 0.01), (900, 100, 0.1)):
        for _ in range(20):
            gate.add_block(canary, round(canary * rate), stable, round(stable * rate))
    assert gate.canary_bad / gate.canary > 3 * gate.stable_bad / gate.stable
    assert not gate.has_failed(ALPHA)
    assert gate.log_evidence < 0


@pytest.mark.parametrize(
    ("stable_rate", "canary_rate", "most"),
    [
        pytest.param(0.0, 1.0, 400, id="fails always"),
        pytest.param(0.1, 0.2, 8_000, id="twice ten percent"),
        pytest.param(0.01, 0.1, 6_000, id="ten times one percent"),
    ],
)
def test_what_is_worse_is_found(stable_rate: float, canary_rate: float, most: int) -> None:
    found = [outcomes(seed, most, share=0.2, stable_rate=stable_rate, canary_rate=canary_rate).has_failed(ALPHA) for seed in range(20)]
    assert sum(found) >= 18


def test_what_is_better_is_no_evidence() -> None:
    assert outcomes(1, 5000, share=0.5, stable_rate=0.2, canary_rate=0.05).log_evidence < 0


def test_a_block_needs_both_arms_and_waits_for_them() -> None:
    gate = Gate()
    for _ in range(5):
        gate.add(is_stable=False, is_bad=True)
        gate.close_block()
    assert (gate.canary, gate.log_evidence) == (0, pytest.approx(0.0))
    gate.add(is_stable=True, is_bad=False)
    gate.close_block()
    assert (gate.canary, gate.canary_bad, gate.stable, gate.stable_bad) == (5, 5, 1, 0)


@given(st.integers(1, 10**5), st.integers(1, 20), st.data())
def test_large_blocks_do_not_overflow(canary: int, stable: int, data: st.DataObject) -> None:
    bad = data.draw(st.integers(1, canary + stable - 1) if canary < 500 else st.integers(1, 500))
    found = _log_normalisers(canary, stable, bad)
    assert len(found) == len(ODDS_RATIOS)
    assert all(0 <= number < 1e9 for number in found), "odds above one raise the expected power"
