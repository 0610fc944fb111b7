"""Inflates compressed request bodies within the memory budget of all bodies, without blocking the event loop
for long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Protocol

from control_plane.core.errors import ControlPlaneError
from control_plane.frontends.common.body_budget import BodyBudget

_BUDGET_WAIT_S = 10.0
"""Seconds to wait for memory for the next piece. It bounds a deadlock: bodies that are half inflated hold
memory while all of them wait for more."""


class CompressedMessage(Protocol):
    """A compressed gRPC message as its frontend holds it."""

    inflated: memoryview | None

    def pieces(self) -> Iterator[bytes]: ...

    def fail(self, error: ControlPlaneError) -> None: ...


class InflatedBody:
    """Buffer for an inflated body, which takes its memory from the budget as it grows; `release` must be
    called."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self.body = bytearray()
        self._held_bytes = 0
        """Bytes taken from the budget; who has the body may change its size a little."""

    async def read(self, pieces: Iterator[bytes]) -> None:
        """Collect the pieces, with a turn of the loop after each.

        Raises what `pieces` raises; Overloaded: no memory.
        """
        for piece in pieces:
            await self._budget.acquire(len(piece), _BUDGET_WAIT_S)
            self._held_bytes += len(piece)
            self.body += piece
            await asyncio.sleep(0)

    async def read_in_thread(self, pieces: Iterator[bytes]) -> None:
        """Collect the pieces as `read` does, but inflate them in a thread (zlib releases the GIL); for bodies that may be large."""
        while piece := await asyncio.to_thread(next, pieces, b""):
            await self._budget.acquire(len(piece), _BUDGET_WAIT_S)
            self._held_bytes += len(piece)
            self.body += piece

    def release(self) -> None:
        self._budget.release(self._held_bytes)


@asynccontextmanager
async def inflated(message: CompressedMessage, budget: BodyBudget) -> AsyncIterator[None]:
    """Inflate a message and hold it within the `with` block.

    A message that cannot be inflated does not raise here: it fails when it is read, so that the refusal is
    recorded.
    """
    content = InflatedBody(budget)
    try:
        try:
            await content.read(message.pieces())
            message.inflated = memoryview(content.body)
        except ControlPlaneError as exc:
            message.fail(exc)
        yield
    finally:
        message.inflated = None
        content.release()
