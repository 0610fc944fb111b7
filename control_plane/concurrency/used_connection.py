"""Closes the connection that httpx leaves open where its call is cancelled. Used by the adapters that make calls with httpx."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Any


class UsedConnection:
    """Connection of one call by httpx, closed where the call is cancelled within the block; the call gets `trace`.

    httpcore 1.0 leaves it open where a cancellation (a deadline is one, too) comes in the TLS handshake, or as httpcore takes
    a lock of its own: a server that accepts and then says nothing would cost a file descriptor a try.
    """

    def __init__(self) -> None:
        self.stream: Any = None
        """The connection, as httpcore's stream of bytes; None until there is one."""

    @property
    def trace(self) -> dict[str, Any]:
        """The extension of httpx by which the call tells of its connection."""
        return {"trace": self._note}

    async def _note(self, event: str, info: Mapping[str, Any]) -> None:
        if event == "connection.connect_tcp.complete":
            self.stream = info["return_value"]

    async def __aenter__(self) -> UsedConnection:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if isinstance(error, asyncio.CancelledError) and self.stream is not None:
            await self.stream.aclose()
