"""Inflates what a caller has compressed: its memory is held of the budget of all bodies, and others get their turn between pieces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Protocol

from control_plane.core.errors import ControlPlaneError
from control_plane.frontends.common.body_budget import BodyBudget

_BUDGET_WAIT_S = 10.0
"""For memory for the next piece, while the pieces before it are held."""


class CompressedMessage(Protocol):
    """A gRPC message as its door holds it."""

    inflated: memoryview | None

    def pieces(self) -> Iterator[bytes]: ...

    def fail(self, error: ControlPlaneError) -> None: ...


class Inflated:
    """A body that grows as it is inflated, within the budget; `give_back` ends it."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self.body = bytearray()

    async def read(self, pieces: Iterator[bytes]) -> None:
        """Raises what `pieces` does, Overloaded: no memory came free."""
        for piece in pieces:
            await self._budget.take(len(piece), _BUDGET_WAIT_S)
            self.body += piece
            await asyncio.sleep(0)

    async def read_in_thread(self, pieces: Iterator[bytes]) -> None:
        """As `read`, for what may be large and slow to inflate."""
        while piece := await asyncio.to_thread(next, pieces, b""):
            await self._budget.take(len(piece), _BUDGET_WAIT_S)
            self.body += piece

    def give_back(self) -> None:
        self._budget.give(len(self.body))


@asynccontextmanager
async def inflated(message: CompressedMessage, budget: BodyBudget) -> AsyncIterator[None]:
    """Hold the message that a compressed frame has within the `with` block; one that cannot be is refused when it is read."""
    content = Inflated(budget)
    try:
        try:
            await content.read(message.pieces())
            message.inflated = memoryview(content.body)
        except ControlPlaneError as exc:
            message.fail(exc)
        yield
    finally:
        message.inflated = None
        content.give_back()
