"""Indexes of Tritons that a worker process cannot read itself: it asks its parent, which asks the Triton's node."""

from __future__ import annotations

from collections.abc import Callable

from control_plane.core.errors import UpstreamUnavailable
from control_plane.core.model import ModelState, ModelVersion
from control_plane.workers.messages.from_workers import ReadIndex
from control_plane.workers.messages.to_workers import IndexRead
from control_plane.workers.replies import Replies


class ParentsIndexes:
    """Client proxy of the parent's looks at indexes; the worker calls `answered` with each reply."""

    def __init__(self, send: Callable[[ReadIndex], None]) -> None:
        self._send = send
        self._replies = Replies[IndexRead]()

    async def read(self, server: str) -> list[ModelVersion]:
        """Return the index of a server's Triton. Raises UpstreamUnavailable."""
        answer = await self._replies.ask(lambda number: self._send(ReadIndex(number, server)))
        if answer.lines is None:
            raise UpstreamUnavailable(answer.reason)
        return [ModelVersion(name, version, ModelState(state), reason) for name, version, state, reason in answer.lines]

    def answered(self, answer: IndexRead) -> None:
        """Take in the parent's reply."""
        self._replies.answered(answer.number, answer)
