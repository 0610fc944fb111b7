"""How token sequences of different lengths become one rectangle."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from python_backends.runtime.errors import RequestError
from python_backends.runtime.execution import Array, Tensors, concatenate


def check_lengths(inputs: Tensors) -> Tensors:
    """The inputs of one request, if all are of one shape [batch, length].

    Once padded next to longer requests, ids and a mask of different lengths would look alike, and give an answer that depends on them.

    Raises:
        RequestError: They are not.
    """
    shape, *others = {array.shape for array in inputs.values()}
    if others or len(shape) != 2 or not shape[0]:
        shapes = {name: list(array.shape) for name, array in inputs.items()}
        raise RequestError(f"the inputs must all have one shape [batch, length] with a batch of at least 1, not {shapes}")
    return inputs


def pad_and_concatenate(arrays: Sequence[Array]) -> Array:
    """Arrays [batch_i, length_i] as one [sum of batch_i, longest length], zero beyond each one's own length.

    Arrays of one length are concatenated without the detour, and a single one is not even copied.
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
