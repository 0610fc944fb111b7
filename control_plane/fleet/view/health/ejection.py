"""Ejects servers that do not answer, or are much slower than others of their pool, and readmits them.

`fleet/domain/health/outliers` decides, by this process's own requests; other processes' findings come with their load reports.
`fleet/routing` reports the outcome of each request, `fleet/reconciler` triggers the judgement.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from math import inf

from control_plane.fleet.domain.event import FleetEventKind
from control_plane.fleet.domain.fleet import NEVER_S, Fleet
from control_plane.fleet.domain.health.outliers import Outliers
from control_plane.fleet.view.events import FleetEvents
from control_plane.fleet.view.reservations import Reservation

_HANGS_S, _HANGS_TIMES = 1.0, 10.0
"""A server hangs if a request takes 10 times as long as expected, and at least 1 s, and the server answered
nothing else meanwhile."""


class OutlierEjection:
    """Outlier ejection of a fleet's servers; nothing else sets `Server.is_ejected` and
    `Server.probe_from_s`."""

    def __init__(self, fleet: Fleet, events: FleetEvents, *, now_s: Callable[[], float]) -> None:
        self.by_us: frozenset[str] = frozenset()
        """Servers that this process's own requests have shown to be outliers."""
        self.by_others: dict[str, frozenset[str]] = {}
        """Process -> the servers that its requests have shown to be outliers."""
        self._fleet = fleet
        self._events = events
        self._now_s = now_s
        self._outliers = Outliers()
        self._answered_s: dict[str, float] = {}
        """Server -> when it last answered anything."""
        self._recorded: frozenset[str] = frozenset()
        """Servers that are ejected, as last recorded in the event log."""

    def answered(self, reservation: Reservation) -> None:
        """Note that a request has been answered; its reservation has been released."""
        server, now_s = reservation.server.name, self._now_s()
        self._answered_s[server] = now_s
        if reservation.unshared_service_s is not None:
            expected_s = reservation.facts.service_s
            self._outliers.note_answer(server, reservation.unshared_service_s, expected_s=expected_s, now_s=now_s)
        else:
            self._outliers.note_untimed_answer(server, now_s)

    def failed(self, reservation: Reservation) -> None:
        """Note that the server did not answer a request. A request lost with an earlier Triton process says
        nothing of the present one, and one that met a silence is no outlier: `fleet/view/state` avoids silent
        servers, and takes them back as soon as they answer."""
        if reservation.is_current and not reservation.met_silence:
            self._outliers.note_failure(reservation.server.name, self._now_s())

    def gave_up(self, reservation: Reservation) -> None:
        """Note that a caller has stopped waiting. It counts as a failure only if the server hangs: the answer
        is overdue, and nobody got one meanwhile."""
        waited_s = self._now_s() - reservation.started_s
        has_answered = self._answered_s.get(reservation.server.name, NEVER_S) >= reservation.started_s
        if not has_answered and waited_s >= max(_HANGS_S, _HANGS_TIMES * reservation.expected_s):
            self.failed(reservation)

    def disconnected(self, reservation: Reservation) -> None:
        """Note that the connection failed: other servers are preferred until `judge` decides, at the next
        tick, whether this one stays ejected."""
        if reservation.met_silence:
            return
        self.failed(reservation)
        reservation.server.is_ejected, reservation.server.probe_from_s = True, inf

    def probe(self, server: str) -> None:
        """Note that a request is sent to an ejected server as a probe; the next one is not, for a while."""
        self._fleet.servers[server].probe_from_s = self._outliers.note_probe(server, self._now_s())

    def judge(self) -> None:
        """Eject servers that do not answer or are much slower than others of their pool, and take back those
        that do well again."""
        servers, now_s = self._fleet.servers, self._now_s()
        # A server that was down starts with a clean record.
        self._outliers.retain_only({name for name, server in servers.items() if server.is_up})
        pools = defaultdict[str, list[str]](list)
        for name, server in servers.items():
            if server.is_up:
                pools[server.pool].append(name)
        out = {name: probe_s for pool in pools.values() for name, probe_s in self._outliers.judge(pool, now_s).items()}
        self.by_us = frozenset(out)
        # What other processes found counts as well: one process alone may have too few requests to tell.
        ejected = set(out).union(*self.by_others.values())
        if all(name in ejected for pool in pools.values() for name in pool):
            # Each process spares some servers, but not the same: together they could eject all.
            ejected = set(out)
        for name, server in servers.items():
            server.is_ejected = name in ejected
            # Only who ejected a server probes it; others wait for word of its recovery.
            server.probe_from_s = out.get(name, inf)
        self._record(frozenset(name for name in ejected if name in servers and servers[name].is_up))

    def forget(self, server: str) -> None:
        """Forget a server that has left; another one may come by its name."""
        self._answered_s.pop(server, None)

    def _record(self, ejected: frozenset[str]) -> None:
        """Record the changes as events. A server that went down is neither ejected nor readmitted."""
        for name in sorted(ejected - self._recorded):
            is_own = name in self.by_us
            why = self._outliers.why(name) if is_own else "another process has seen it answer too slowly or not at all"
            self._events.record(FleetEventKind.EJECTED, server=name, reason=why)
        for name in sorted(self._recorded - ejected):
            if name in self._fleet.servers and self._fleet.servers[name].is_up:
                self._events.record(FleetEventKind.READMITTED, server=name)
        self._recorded = ejected
