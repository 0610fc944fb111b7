"""Messages of a worker that its parent replies to, told apart by their numbers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Generic, TypeVar

ReplyT = TypeVar("ReplyT")


class Replies(Generic[ReplyT]):
    """Replies to messages of one kind, each given to the caller that waits for it."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[ReplyT]] = {}

    async def ask(self, send: Callable[[int], None]) -> ReplyT:
        """Have `send` send a message of a new number, and return its reply. There is no timeout: wait until the reply
        comes or the caller is cancelled."""
        number = next(self._numbers)
        waiting: asyncio.Future[ReplyT] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiting
        try:
            send(number)
            return await waiting
        finally:
            del self._waiting[number]

    def answered(self, number: int, reply: ReplyT) -> None:
        """Give a reply to the caller that waits for it; the caller may have left."""
        waiting = self._waiting.get(number)
        if waiting is not None and not waiting.done():
            waiting.set_result(reply)
