"""Scope of a task that somebody else may abort, with an error of his choice, while the task waits within it."""

from __future__ import annotations

import asyncio
from types import TracebackType


class AbortScope:
    """Block (`async with`) that ends with the error given to `abort`: a timeout of asyncio whose time comes when somebody says so."""

    __slots__ = ("_error", "_scope")

    def __init__(self) -> None:
        self._scope = asyncio.timeout(None)
        self._error: Exception | None = None

    def abort(self, error: Exception) -> None:
        """Cancel what the task waits for, and have the block raise `error`. To be called while the task is within it; again: nothing."""
        if self._error is None:
            self._error = error
            self._scope.reschedule(asyncio.get_running_loop().time())

    async def __aenter__(self) -> None:
        await self._scope.__aenter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        try:
            await self._scope.__aexit__(kind, error, traceback)
        except TimeoutError:  # its own: one from within the block is passed through by whoever calls this
            assert self._error is not None, "it has no other deadline"
            raise self._error from None
