"""Cooperative steps: long pure work as a generator that yields every few milliseconds, so that other tasks
can run.

The codecs (`protocols`) do no I/O and know no event loop: they yield, and the frontend that runs them decides
what to do in between.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]
"""Generator that yields at each pause and returns the result."""


def finish(steps: Steps[T]) -> T:
    """Run all steps without a pause and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
