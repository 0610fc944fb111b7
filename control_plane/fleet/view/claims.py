"""The places of requests at copies of models, by which is known how busy each server is, and what a request takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from control_plane.fleet.domain.fleet import Copy, ModelFacts, Server
from control_plane.fleet.view.measurements import SMOOTHING
from control_plane.triton.ports import Upstream


class Picture(Protocol):
    """`fleet/view/state`."""

    def now_s(self) -> float: ...

    def released(self) -> None:
        """A request has ended."""


class Claim:
    """A request's place at a copy; released once."""

    __slots__ = ("_service_s", "_state", "_there", "copy", "expected_s", "facts", "server", "started_s", "took_alone_s", "upstream")

    def __init__(self, state: Picture, upstream: Upstream, server: Server, copy: Copy, facts: ModelFacts) -> None:
        self._state = state
        self.upstream = upstream
        self.server = server
        self.copy = copy
        self.facts = facts
        self._service_s = facts.service_s
        self.started_s = state.now_s()
        self.expected_s = server.work_s / server.parallel + facts.service_s
        """For its answer."""
        self._there = copy.in_flight - copy.in_flight_elsewhere + 1
        """For this model at its beginning."""
        self.took_alone_s: float | None = None
        """Once it is released: seconds, if no other request for the model was there at its beginning nor at its end."""
        copy.in_flight += 1
        copy.last_used_s = self.started_s
        server.work_s += self._service_s

    def release(self, *, answered: bool) -> None:
        """It is over; `answered` tells that the time it took says something of the model."""
        copy, server = self.copy, self.server
        copy.in_flight -= 1
        server.work_s = 0.0 if _is_idle(server) else max(0.0, server.work_s - self._service_s)
        if answered and copy.in_flight == copy.in_flight_elsewhere:  # beside others it took as long as they made it take
            took_s = self._state.now_s() - self.started_s
            self.facts.service_s += SMOOTHING * (took_s / self._there - self.facts.service_s)  # those that were there went before it
            self.took_alone_s = took_s if self._there == 1 else None
        self._state.released()


@contextmanager
def waiting_at(server: Server, facts: ModelFacts) -> Iterator[None]:
    """Count a request as waiting for the load there while the block lasts."""
    copy, service_s = server.copies[facts.name], facts.service_s
    copy.in_flight += 1
    server.work_s += service_s
    try:
        yield
    finally:
        copy.in_flight -= 1
        server.work_s = 0.0 if _is_idle(server) else max(0.0, server.work_s - service_s)


def _is_idle(server: Server) -> bool:
    return all(copy.in_flight == 0 for copy in server.copies.values())
