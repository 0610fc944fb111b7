"""Late requests that wait for a server with an idle instance of their model: each instance that becomes idle wakes the one that has
waited longest.

`fleet/routing/hedging` waits here, and also polls: requests that end in other processes wake nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Hashable


class IdleWaiters:
    """Register of the requests that wait for an idle server, by model."""

    def __init__(self) -> None:
        self.models: dict[str, dict[Hashable, tuple[asyncio.Future[None], Container[str]]]] = {}
        """Model -> those that wait, the first one first, each with the servers that will not do; only models with any."""

    def next(self, who: Hashable, model: str, *, avoid: Container[str]) -> asyncio.Future[None]:
        """Return what is done once a server may be idle that is none of `avoid`. Who waits on keeps its place."""
        woken = asyncio.get_running_loop().create_future()
        self.models.setdefault(model, {})[who] = woken, avoid
        return woken

    def leave(self, who: Hashable, model: str) -> None:
        """Forget one that waits no longer, or never did."""
        waiting = self.models.get(model)
        if waiting is not None and waiting.pop(who, None) is not None and not waiting:
            del self.models[model]

    def freed(self, server: str, model: str) -> None:
        """Note that an instance of the model is idle on this server."""
        for woken, avoid in self.models.get(model, {}).values():
            if not woken.done() and server not in avoid:
                woken.set_result(None)
                return
