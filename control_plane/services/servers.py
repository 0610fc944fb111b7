"""Which Triton requests go to, as the supervisor reports it; asked for by every request."""

from __future__ import annotations

import asyncio
from typing import Protocol

from control_plane.domain.errors import UpstreamUnavailable
from control_plane.ports import Upstream


class Follower(Protocol):
    """Who is told of every change: `Servers`, and through it the workers, which have connections of their own."""

    def up(self, upstream: Upstream) -> None: ...

    def down(self, reason: str) -> None: ...


class Servers:
    """Holds the one server that is up, or why there is none."""

    def __init__(self, follower: Follower | None = None) -> None:
        self._upstream: Upstream | None = None
        self._reason = "Triton is starting"
        self._is_up = asyncio.Event()
        self._follower = follower

    @property
    def is_up(self) -> bool:
        return self._upstream is not None

    async def wait_until_up(self) -> None:
        await self._is_up.wait()

    def up(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._is_up.set()
        if self._follower is not None:
            self._follower.up(upstream)

    def down(self, reason: str) -> None:
        self._upstream, self._reason = None, reason
        self._is_up.clear()
        if self._follower is not None:
            self._follower.down(reason)

    def pick(self) -> Upstream:
        """The server for a request. Raises UpstreamUnavailable, with the reason, while there is none."""
        if self._upstream is None:
            raise UpstreamUnavailable(f"{self._reason}; try again shortly")
        return self._upstream
