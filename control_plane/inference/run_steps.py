"""Runs the codec's long work in slices between which others get their turn."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from control_plane.core.steps import Steps

T = TypeVar("T")


async def in_slices(steps: Steps[T]) -> T:
    """The result of `steps`; work that never pauses costs no turn of the loop."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        await asyncio.sleep(0)
