"""Runs long codec work cooperatively: it yields to the event loop between slices, so that other requests proceed."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from control_plane.core.algorithms.steps import Steps

T = TypeVar("T")


async def run_in_steps(steps: Steps[T]) -> T:
    """Run `steps` to their result, yielding to the loop at each pause; work without a pause yields never."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        await asyncio.sleep(0)  # one turn of the loop
