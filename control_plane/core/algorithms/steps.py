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

_PIECE_BYTES = 2**20
"""Copying so much takes some 0.2 ms."""


def finish(steps: Steps[T]) -> T:
    """Run all steps without a pause and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def join_steps(*parts: bytes | bytearray | memoryview) -> Steps[bytearray]:
    """Join parts of any size, in steps."""
    joined = bytearray()
    for part in parts:
        view = memoryview(part)
        for at in range(0, len(view), _PIECE_BYTES):
            if at:
                yield
            joined += view[at : at + _PIECE_BYTES]
    return joined
