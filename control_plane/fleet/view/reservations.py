"""In-flight reservations: each request holds a slot at a replica. They show how busy each server is, and what a request takes.

Written for the hot path: one object and a few additions for each request.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from control_plane.fleet.domain.fleet import ModelFacts, Replica, Server
from control_plane.fleet.domain.leadership.report import ReplicaUse
from control_plane.fleet.view.idle_waiters import IdleWaiters
from control_plane.fleet.view.models.measurements import weight_of
from control_plane.triton.ports import Upstream

_NEXT_TO_NOTHING_S = 1e-6
"""Work that counts as none: sums of floating-point differences leave a little over, and no request takes so little."""


class ReservationView(Protocol):
    """The part of `fleet/view/state` that reservations need."""

    def now_s(self) -> float: ...

    idle_waiters: IdleWaiters

    def released(self) -> None:
        """Note that a request has ended."""


class Reservation:
    """Reservation of an in-flight slot at a replica, held by one request and released once."""

    __slots__ = (
        "_in_flight_at_start",
        "_service_s",
        "_state",
        "expected_s",
        "facts",
        "replica",
        "server",
        "started_s",
        "unshared_service_s",
        "upstream",
    )

    def __init__(self, state: ReservationView, upstream: Upstream, server: Server, replica: Replica, facts: ModelFacts) -> None:
        self._state = state
        self.upstream = upstream
        self.server = server
        self.replica = replica
        self.facts = facts
        # Kept, as the mean may change before the release, which must subtract what was added.
        self._service_s = facts.service_s
        self.started_s = state.now_s()
        self.expected_s = server.work_s / server.parallel + facts.service_s
        """Expected seconds until the answer, including the requests before it."""
        self._in_flight_at_start = replica.in_flight - replica.in_flight_elsewhere + 1
        """Requests of this process for the same model here, this one included, when it began."""
        self.unshared_service_s: float | None = None
        """After the release: seconds that it took, if no other request for the model was here when it began
        or ended; None otherwise."""
        replica.in_flight += 1
        replica.last_used_s = replica.waiting[id(self)] = self.started_s
        server.work_s += self._service_s
        replica.departures.arrived(server.service_clock, self.started_s)

    @property
    def is_held(self) -> bool:
        """Whether it has not been released yet."""
        return id(self) in self.replica.waiting

    @property
    def is_current(self) -> bool:
        """Whether the replica is still in the view; another one of its model may be in its place."""
        return self.server.replicas.get(self.replica.model) is self.replica

    @property
    def met_silence(self) -> bool:
        """Whether the server has been silent since the request began, so that the time it took says nothing."""
        return self.server.silent_from_s is not None or self.started_s <= self.server.heard_s

    def release(self, *, answered: bool) -> None:
        """Give the slot back; `answered` tells that the time it took says something of the model."""
        replica, server = self.replica, self.server
        replica.in_flight -= 1
        del replica.waiting[id(self)]
        server.work_s = _without(server.work_s, self._service_s)
        now_s = self._state.now_s()
        tells = answered and not self.met_silence
        shown = replica.departures.departed(server.service_clock, now_s, answered=tells)
        if shown is not None:
            self.facts.service_s += weight_of(shown.requests) * (shown.service_s * self._own_part() - self.facts.service_s)
        # Beside others it took as long as they made it take.
        if tells and self._in_flight_at_start == 1 and replica.in_flight == replica.in_flight_elsewhere:
            self.unshared_service_s = now_s - self.started_s
        if self._state.idle_waiters.models and replica.in_flight < self.facts.spec.instances:
            self._state.idle_waiters.freed(server.name, replica.model)
        self._state.released()

    def _own_part(self) -> float:
        """The part of the replica's time that this process's requests have while requests queue there.

        Where they do not, other processes' reports, which are a moment old, tell of requests that have ended.
        """
        left, elsewhere = self.replica.in_flight - self.replica.in_flight_elsewhere, self.replica.in_flight_elsewhere
        return left / (left + elsewhere) if left else 1.0


class RemoteReservations:
    """Reservations that another process holds at a replica, as its load report counts them; released together
    when the next report replaces it."""

    __slots__ = ("_server", "_work_s", "replica", "use")

    def __init__(self, server: Server, replica: Replica, use: ReplicaUse, *, service_s: float, now_s: float) -> None:
        self._server = server
        self.replica = replica
        self.use = use
        self._work_s = service_s * use.in_flight
        replica.in_flight += use.in_flight
        # Kept apart: only this process's own requests tell how long one takes (`Reservation.release`).
        replica.in_flight_elsewhere += use.in_flight
        replica.sequences += use.sequences
        replica.last_used_s = now_s
        server.work_s += self._work_s

    def release(self) -> None:
        """Subtract them from the very replica that they were added to: another one of the same model may be
        in its place by now."""
        self.replica.in_flight -= self.use.in_flight
        self.replica.in_flight_elsewhere -= self.use.in_flight
        self.replica.sequences -= self.use.sequences
        self._server.work_s = _without(self._server.work_s, self._work_s)


@contextmanager
def waiting_at(server: Server, facts: ModelFacts) -> Iterator[None]:
    """Count a request as waiting for the load of its model on this server, for as long as the block lasts."""
    replica, service_s = server.replicas[facts.name], facts.service_s
    replica.in_flight += 1
    server.work_s += service_s
    try:
        yield
    finally:
        replica.in_flight -= 1
        server.work_s = _without(server.work_s, service_s)


def _without(work_s: float, service_s: float) -> float:
    """Return what is left of a server's work without that of a request."""
    left_s = work_s - service_s
    return left_s if left_s > _NEXT_TO_NOTHING_S else 0.0
