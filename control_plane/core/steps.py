"""Long work as a generator that pauses every few milliseconds, so that whoever runs it can let others run in between.

The codec does no I/O and knows no event loop: it yields, and a front door decides what a pause is.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]
"""Yields at each pause and returns the result."""


def finish(steps: Steps[T]) -> T:
    """The result, without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
