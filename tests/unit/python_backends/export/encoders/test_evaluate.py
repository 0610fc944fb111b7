"""Cosines with the reference, and ranks of pairs beside people's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backends.export.encoders.evaluate import cosine_agreement, row_cosines, similarity_agreement, spearman


def test_row_cosines_are_of_each_row_with_its_own() -> None:
    first, second = np.float32([[1, 0], [0, 2], [1, 1]]), np.float32([[3, 0], [3, 4], [-1, -1]])

    assert row_cosines(first, second) == pytest.approx([1, 0.8, -1])


def test_a_zero_row_has_no_cosine() -> None:
    assert np.isnan(row_cosines(np.zeros((1, 2)), np.ones((1, 2)))).all()


def test_agreement_is_the_worst_percentile_the_median_and_the_worst() -> None:
    # Angles whose cosines are 0.00, 0.01 ... 1.00: the percentiles are the values themselves.
    cosines = np.arange(101) / 100
    candidate = np.stack([cosines, np.sqrt(1 - cosines**2)], axis=1)
    reference = np.tile([[1.0, 0.0]], (101, 1))

    measured = cosine_agreement(reference, candidate)

    assert measured == pytest.approx({"texts": 101, "cosine_p1": 0.01, "cosine_p50": 0.5, "cosine_min": 0.0})


def test_one_that_is_no_number_spoils_the_agreement() -> None:
    reference = np.ones((200, 2))
    candidate = reference.copy()
    candidate[7] = np.nan

    assert math.isnan(cosine_agreement(reference, candidate)["cosine_p1"])


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        pytest.param([1, 2, 3], [10, 200, 3000], 1.0, id="same-order"),
        pytest.param([1, 2, 3], [3, 2, 1], -1.0, id="opposite"),
        # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: 4.5 / sqrt(4.5 * 5).
        pytest.param([0, 1, 1, 5], [1, 2, 3, 4], 4.5 / math.sqrt(4.5 * 5), id="ties-share-their-rank"),
        # The example of Wikipedia's "Spearman's rank correlation coefficient": -29/165.
        pytest.param(
            [106, 100, 86, 101, 99, 103, 97, 113, 112, 110], [7, 27, 2, 50, 28, 29, 20, 12, 6, 17], -29 / 165, id="published-example"
        ),
    ],
)
def test_spearman(first: list[float], second: list[float], expected: float) -> None:
    assert spearman(first, second) == pytest.approx(expected)
    assert spearman(second, first) == pytest.approx(expected)


@pytest.mark.parametrize("second", [[1, 1, 1], [1, math.nan, 2]])
def test_spearman_of_what_has_no_order_is_not_a_number(second: list[float]) -> None:
    assert math.isnan(spearman([1, 2, 3], second))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-9, 9)), min_size=3, max_size=30))
def test_spearman_knows_nothing_but_order(pairs: list[tuple[int, int]]) -> None:
    first, second = [float(one) for one, _ in pairs], [float(other) for _, other in pairs]
    if len(set(first)) < 2 or len(set(second)) < 2:
        return

    stretched = [math.exp(value / 3) for value in second]

    assert -1 - 1e-9 <= spearman(first, second) <= 1 + 1e-9
    assert spearman(first, stretched) == pytest.approx(spearman(first, second))


def test_the_loss_is_a_part_of_the_references_correlation() -> None:
    scores = [1.0, 2.0, 3.0, 4.0]
    measured = similarity_agreement(scores, np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.1, 0.3, 0.2, 0.4]))

    assert measured == {"pairs": 4, "spearman": 0.8, "spearman_fp32": 1.0, "relative_loss": 0.2}


def test_a_variant_that_ranks_better_loses_less_than_nothing() -> None:
    scores = [1.0, 2.0, 3.0, 4.0]

    assert similarity_agreement(scores, np.array([0.1, 0.3, 0.2, 0.4]), np.array(scores))["relative_loss"] == -0.25
