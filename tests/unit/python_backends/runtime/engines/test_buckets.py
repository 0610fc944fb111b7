"""Buckets of shapes: the smallest that holds, and padding that comes off again."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backends.runtime.engines.buckets import Buckets, cut, pad_into, steps

BUCKETS = Buckets({"batch": [1, 4], "length": [16, 24, 32]})


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        pytest.param((1, 1), (1, 16), id="smallest"),
        pytest.param((1, 16), (1, 16), id="exactly"),
        pytest.param((2, 17), (4, 24), id="between"),
        pytest.param((4, 32), (4, 32), id="largest"),
        pytest.param((5, 1), None, id="batch-beyond"),
        pytest.param((1, 33), None, id="length-beyond"),
    ],
)
def test_the_smallest_bucket_that_holds_it(wanted: tuple[int, int], chosen: tuple[int, int] | None) -> None:
    bucket = BUCKETS.choose({"batch": wanted[0], "length": wanted[1]})

    assert bucket == (None if chosen is None else {"batch": chosen[0], "length": chosen[1]})


def test_every_combination_comes_once_and_the_largest_first() -> None:
    combinations = [tuple(sizes.values()) for sizes in BUCKETS]

    assert combinations == [(4, 32), (4, 24), (4, 16), (1, 32), (1, 24), (1, 16)]


@pytest.mark.parametrize(
    ("first", "last", "sizes"),
    [
        pytest.param(16, 128, [16, 24, 32, 48, 64, 96, 128], id="powers-and-between"),
        pytest.param(16, 40, [16, 24, 32, 40], id="the-last-is-exact"),
        pytest.param(16, 16, [16], id="one"),
        pytest.param(16, 8, [8], id="a-model-shorter-than-the-first"),
        pytest.param(1, 8, [1, 2, 3, 4, 6, 8], id="from-one"),
    ],
)
def test_steps(first: int, last: int, sizes: list[int]) -> None:
    assert steps(first, last) == sizes


@given(st.integers(1, 40), st.integers(1, 600))
def test_a_step_never_costs_more_than_half_as_much_again(first: int, last: int) -> None:
    sizes = steps(first, last)

    assert sizes[-1] == last
    assert all(small < large <= max(small + 1, 1.5 * small) for small, large in pairwise(sizes))


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 4), st.integers(0, 4))
def test_padding_is_zero_and_comes_off_again(batch: int, length: int, more_rows: int, more_positions: int) -> None:
    array = np.arange(1, batch * length + 1).reshape(batch, length)
    # What was there before must not shine through.
    target = np.full((batch + more_rows, length + more_positions), 99)

    pad_into(target, array)

    assert target.sum() == array.sum()
    np.testing.assert_array_equal(cut(target, array.shape), array)


def test_what_is_cut_is_a_copy() -> None:
    source = np.ones((2, 2))

    piece = cut(source, (1, 2))
    source[:] = 0

    assert piece.tolist() == [[1, 1]]
