"""Padding of sequences of different lengths to one array."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backends.runtime.errors import RequestError
from python_backends.text_encoder.padding import check_lengths, pad_and_concatenate

ARRAYS = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 6)), min_size=1, max_size=6).map(
    lambda shapes: [np.full(shape, index + 1) for index, shape in enumerate(shapes)]
)


@given(ARRAYS)
def test_every_row_is_there_in_order_and_zero_beyond_its_length(arrays: list[np.ndarray]) -> None:
    padded = pad_and_concatenate(arrays)

    expected = [row.tolist() + [0] * (padded.shape[1] - len(row)) for array in arrays for row in array]
    assert padded.tolist() == expected
    assert padded.shape[1] == max(array.shape[1] for array in arrays)


@pytest.mark.parametrize("data_type", [np.int32, np.int64])
def test_the_data_type_stays(data_type: type) -> None:
    assert pad_and_concatenate([np.ones((1, 2), data_type), np.ones((1, 3), data_type)]).dtype == data_type


def test_a_lone_request_is_not_copied() -> None:
    array = np.ones((2, 3))

    assert pad_and_concatenate([array]) is array


def test_inputs_of_one_shape_pass_as_they_are() -> None:
    inputs = {"IDS": np.ones((2, 3)), "MASK": np.ones((2, 3))}

    assert check_lengths(inputs) is inputs


@pytest.mark.parametrize("shape", [(1, 3), (2, 4)])
def test_ids_and_mask_of_different_shapes_are_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(RequestError, match=rf"must all have one shape .* not {{'IDS': \[2, 3\], 'MASK': \[{shape[0]}, {shape[1]}\]}}"):
        check_lengths({"IDS": np.ones((2, 3)), "MASK": np.ones(shape)})


@pytest.mark.parametrize("shape", [(3,), (2, 3, 4), (0, 3), (2, 0)])
def test_what_is_no_batch_of_sequences_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(RequestError, match=r"must all have one shape \[batch, length\]"):
        check_lengths({"IDS": np.ones(shape), "MASK": np.ones(shape)})
