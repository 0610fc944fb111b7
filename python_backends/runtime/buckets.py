"""A bounded set of shapes, and arrays padded up to one: for runtimes that prepare each shape in advance, as CUDA graphs must be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from python_backends.runtime.execution import Array
from python_backends.runtime.interface import Sizes


@dataclass(frozen=True, slots=True)
class Buckets:
    """For each named dimension the sizes that are prepared, ascending."""

    sizes: Mapping[str, Sequence[int]]

    def choose(self, wanted: Sizes) -> Sizes | None:
        """The smallest prepared size of each dimension that holds what is wanted; None where one is beyond the largest."""
        chosen = {name: next((size for size in self.sizes[name] if size >= wanted[name]), None) for name in self.sizes}
        found = {name: size for name, size in chosen.items() if size is not None}
        return found if len(found) == len(chosen) else None

    def __iter__(self) -> Iterator[Sizes]:
        """Every combination, the largest first, so that what a smaller one needs in memory is there already."""
        for sizes in product(*(sorted(sizes, reverse=True) for sizes in self.sizes.values())):
            yield dict(zip(self.sizes, sizes, strict=True))


def steps(first: int, last: int) -> list[int]:
    """`first` (at most `last`), then 8, 12, 16, 24, 32, ... up to `last`: padding stays below a half of what is useful."""
    sizes = [min(first, last)]
    while sizes[-1] < last:
        power = 1 << (sizes[-1].bit_length() - 1)
        sizes.append(min(last, power + max(1, power // 2) if sizes[-1] < power + power // 2 else 2 * power))
    return sizes


def pad_into(target: Array, array: Array) -> None:
    """Write `array` into the corner of a larger `target`, and zero everywhere else."""
    corner = tuple(slice(size) for size in array.shape)
    if target.shape != array.shape:
        target[...] = 0
    target[corner] = array


def cut(array: Array, shape: Sequence[int]) -> Array:
    """A copy of the corner of `shape`."""
    return np.array(array[tuple(slice(size) for size in shape)])
