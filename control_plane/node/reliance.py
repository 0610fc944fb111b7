"""Until when this gateway may rely on what its nodes have said they have loaded."""

from __future__ import annotations

from collections.abc import Callable
from math import inf


class NodeReliance:
    """Common end of the time in which fingerprints of all nodes may be relied on."""

    def __init__(self, tell: Callable[[float], None]) -> None:
        """`tell` is told of each change: a time of the machine's boot clock, infinity where there is no node."""
        self._tell = tell
        self._until_s: dict[str, float] = {}

    def relies_until(self, server: str, until_s: float | None) -> None:
        """Note until when a server's fingerprints may be relied on; None: none of its are known any more."""
        if until_s is None:
            self._until_s.pop(server, None)
        else:
            self._until_s[server] = until_s
        self._tell(min(self._until_s.values(), default=inf))
