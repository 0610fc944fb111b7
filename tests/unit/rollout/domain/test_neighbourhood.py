from __future__ import annotations

import numpy as np
import pytest

from control_plane.rollout.domain.neighbourhood import LEAST, SAMPLE, Neighbourhood, shared_nearest, spearman


@pytest.mark.parametrize(
    ("one", "other", "is_"),
    [
        ([1, 2, 3, 4], [10, 200, 3000, 40000], 1.0),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
        ([1, 2, 3, 4, 5], [2, 1, 4, 3, 5], 0.8),
        ([1, 1, 2, 2], [1, 1, 2, 2], 1.0),
        ([1, 2, 3], [5, 5, 5], 0.0),
    ],
)
def test_spearman(one: list[float], other: list[float], is_: float) -> None:
    assert spearman(np.array(one), np.array(other)) == pytest.approx(is_)


def test_the_ten_nearest() -> None:
    here = np.arange(100.0)
    assert shared_nearest(here, here) == 1.0
    assert shared_nearest(here, -here) == 0.0
    assert shared_nearest(here, np.roll(here, 3)) == 0.7


def test_the_sample_is_bounded_and_nothing_is_said_before_there_are_enough() -> None:
    rows, held = np.random.default_rng(1).normal(size=(300, 8)), Neighbourhood()
    verdicts = [held.agree(row, row, least=0.3) for row in rows]
    assert verdicts == [None] * LEAST + [True] * (300 - LEAST)
    assert len(held._rows) == SAMPLE


def test_another_size_than_before_is_wrong() -> None:
    held = Neighbourhood()
    assert held.agree(np.ones(4), np.ones(4), least=0.3) is None
    assert held.agree(np.arange(4.0), np.ones(5), least=0.3) is False
