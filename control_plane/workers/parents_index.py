"""Indexes of Tritons that a worker process cannot read itself: it asks its parent, which asks the Triton's node."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from control_plane.core.errors import UpstreamUnavailable
from control_plane.core.model import ModelState, ModelVersion
from control_plane.workers.messages import IndexRead, ReadIndex


class ParentsIndexes:
    """Client proxy of the parent's looks at indexes; the worker calls `answered` with each reply."""

    def __init__(self, send: Callable[[ReadIndex], None]) -> None:
        self._send = send
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[IndexRead]] = {}

    async def read(self, server: str) -> list[ModelVersion]:
        """Return the index of a server's Triton. Raises UpstreamUnavailable."""
        number = next(self._numbers)
        waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(ReadIndex(number, server))
            answer = await waiting
        finally:
            del self._waiting[number]
        if answer.lines is None:
            raise UpstreamUnavailable(answer.reason)
        return [ModelVersion(name, version, ModelState(state), reason) for name, version, state, reason in answer.lines]

    def answered(self, answer: IndexRead) -> None:
        """Give a reply to the caller that waits for it; the caller may have left."""
        waiting = self._waiting.get(answer.number)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)
