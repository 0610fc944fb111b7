"""Buckets of shapes, and padding of arrays up to a bucket, for runtimes that prepare each shape in advance
(CUDA graphs).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from python_backends.runtime.execution import Array
from python_backends.runtime.interface import Sizes


@dataclass(frozen=True, slots=True)
class Buckets:
    """The prepared sizes of each named dimension, ascending."""

    sizes: Mapping[str, Sequence[int]]

    def choose(self, wanted: Sizes) -> Sizes | None:
        """Return the smallest prepared size of each dimension that is large enough; None if a dimension
        exceeds the largest.
        """
        chosen = {name: next((size for size in self.sizes[name] if size >= wanted[name]), None) for name in self.sizes}
        found = {name: size for name, size in chosen.items() if size is not None}
        return found if len(found) == len(chosen) else None

    def __iter__(self) -> Iterator[Sizes]:
        """Yield every combination, the largest first, so that smaller ones reuse the memory that it has
        allocated.
        """
        for sizes in product(*(sorted(sizes, reverse=True) for sizes in self.sizes.values())):
            yield dict(zip(self.sizes, sizes, strict=True))


def steps(first: int, last: int) -> list[int]:
    """Return `first` (at most `last`), then 8, 12, 16, 24, 32, ... up to `last`: padding adds less than half
    of the useful size.
    """
    sizes = [min(first, last)]
    while sizes[-1] < last:
        power = 1 << (sizes[-1].bit_length() - 1)
        sizes.append(min(last, power + max(1, power // 2) if sizes[-1] < power + power // 2 else 2 * power))
    return sizes


def pad_into(target: Array, array: Array) -> None:
    """Write `array` into the corner of a larger `target`, and zeros everywhere else."""
    corner = tuple(slice(size) for size in array.shape)
    if target.shape != array.shape:
        target[...] = 0
    target[corner] = array


def cut(array: Array, shape: Sequence[int]) -> Array:
    """Return a copy of the array's corner of this shape."""
    return np.array(array[tuple(slice(size) for size in shape)])
