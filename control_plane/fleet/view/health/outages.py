"""Outages of servers that went down by themselves: an event when one begins and when it ends."""

from __future__ import annotations

from collections.abc import Callable

from control_plane.core.model import ModelState
from control_plane.fleet.domain.counts import FleetCounts
from control_plane.fleet.domain.event import FleetEventKind
from control_plane.fleet.domain.fleet import Server
from control_plane.fleet.view.events import FleetEvents

_MAX_NAMED = 5
"""Models that the log names when a server is lost with them: there may be hundreds."""


class Outages:
    """Record of the servers that went down by themselves and are not back yet."""

    def __init__(self, events: FleetEvents, counts: FleetCounts, *, now_s: Callable[[], float]) -> None:
        self._events = events
        self._counts = counts
        self._now_s = now_s
        self._since_s: dict[str, float] = {}
        """Server -> since when it has been down."""

    def begin(self, server: Server, reason: str) -> None:
        """Record that a server is lost, with the models that were ready on it; once until it is back."""
        if server.name in self._since_s:
            return
        self._since_s[server.name] = self._now_s()
        lost = sorted(replica.model for replica in server.replicas.values() if replica.state is ModelState.READY and not replica.is_step)
        self._counts.events[FleetEventKind.LOST] += len(lost)
        more = f" and {len(lost) - _MAX_NAMED} more" if len(lost) > _MAX_NAMED else ""
        with_it = f"; with it {', '.join(lost[:_MAX_NAMED])}{more}" if lost else ""
        self._events.record(FleetEventKind.DOWN, server=server.name, reason=f"{reason}{with_it}")

    def end(self, server: str) -> None:
        """Record that a server which was lost is back; nothing of one that was not."""
        if (since_s := self._since_s.pop(server, None)) is not None:
            self._events.record(FleetEventKind.UP, server=server, seconds=self._now_s() - since_s)

    def forget(self, server: str) -> None:
        """Forget a server that has left the fleet; another one may come by its name."""
        self._since_s.pop(server, None)
