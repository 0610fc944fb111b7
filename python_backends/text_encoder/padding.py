"""Padding of token sequences of different lengths to one array."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from python_backends.runtime.errors import RequestError
from python_backends.runtime.execution import Array, Tensors, concatenate


def check_lengths(inputs: Tensors) -> Tensors:
    """Return the inputs of one request if all have the same shape [batch, length].

    Ids and a mask of different lengths would become equally long when padded next to longer requests; the
    answer would then depend on those.

    Raises:
        RequestError: The shapes differ, or are not [batch, length], or nothing is in them.
    """
    shape, *others = {array.shape for array in inputs.values()}
    if others or len(shape) != 2 or 0 in shape:
        shapes = {name: list(array.shape) for name, array in inputs.items()}
        raise RequestError(f"the inputs must all have one shape [batch, length] with at least one row and one token, not {shapes}")
    return inputs


def pad_and_concatenate(arrays: Sequence[Array]) -> Array:
    """Combine arrays [batch_i, length_i] into one [sum of batch_i, longest length], padded with zeros.

    Arrays of equal length are concatenated directly, and a single array is returned without a copy.
    """
    longest = max(array.shape[1] for array in arrays)
    if all(array.shape[1] == longest for array in arrays):
        return concatenate(arrays)
    padded = np.zeros((sum(len(array) for array in arrays), longest), dtype=arrays[0].dtype)
    start = 0
    for array in arrays:
        batch, length = array.shape
        padded[start : start + batch, :length] = array
        start += batch
    return padded
