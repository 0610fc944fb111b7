"""Replicas in doubt: this process's own requests suggest that their stub has died or hangs.

Other replicas are preferred. Now and then a request that may be sent again is sent to a doubted replica as a probe: its answer
clears the replica, its failure confirms the doubt. `fleet/routing/model_router` asks and reports.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from control_plane.core.model import ModelState
from control_plane.fleet.domain.fleet import Fleet, Replica, Server
from control_plane.fleet.view.reservations import Reservation

_FIRST_PAUSE_S, _MAX_PAUSE_S = 1.0, 8.0
"""Between two probes, at first and at most; the pause doubles with each that was not answered."""
_FORGETTING = 0.98
"""Part that remains of the longest answer with each answer: the first request of a model may compile for a minute."""


@dataclass(slots=True)
class _Doubt:
    """Doubt about one replica, and when it is probed next."""

    replica: Replica
    server: Server
    probe_from_s: float
    pause_s: float = _FIRST_PAUSE_S
    probe: Reservation | None = None
    """The last probe, until it has told something or its end has been noticed."""


class ReplicaDoubts:
    """Record of one process on which replicas answer, and which are in doubt."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._doubts: dict[str, dict[str, _Doubt]] = {}
        """Model -> server -> the doubt."""
        self._worked_on_elsewhere: list[Replica] = []

    def answered(self, reservation: Reservation, now_s: float) -> None:
        """Note that a replica has answered a request, which clears it."""
        replica, sent_s = reservation.replica, reservation.started_s
        replica.answered_s, replica.worked_on_elsewhere_s = now_s, inf
        replica.longest_s = max(_FORGETTING * replica.longest_s, now_s - sent_s)
        if sent_s > replica.answered_sent_s:
            replica.answered_sent_s = sent_s
        # What was sent before one that was given up is answered before it: that says nothing of it.
        if replica.abandoned_s < sent_s:
            replica.abandoned_s = inf if replica.newest_abandoned_s < sent_s else replica.newest_abandoned_s
        if replica.model in self._doubts:
            self._clear(replica.model, reservation.server.name)

    def goes_on(self, replica: Replica, now_s: float) -> None:
        """Note that a replica goes on with a response that it streams, so that it is not silent."""
        replica.answered_s = now_s

    def gave_up(self, reservation: Reservation) -> None:
        """Note that a request was not answered before its caller gave it up."""
        replica = reservation.replica
        if reservation.started_s > replica.answered_sent_s:
            replica.abandoned_s = min(replica.abandoned_s, reservation.started_s)
            replica.newest_abandoned_s = max(replica.newest_abandoned_s, reservation.started_s)

    def others_work_on(self, requests: Iterable[tuple[str, str, float]]) -> None:
        """Note the server, the model and the time it was sent of other processes' oldest requests, in place of those noted
        before."""
        for each in self._worked_on_elsewhere:
            each.worked_on_elsewhere_s = inf
        self._worked_on_elsewhere = []
        for name, model, sent_s in requests:
            server = self._fleet.servers.get(name)
            replica = None if server is None else server.replicas.get(model)
            # One that was sent to a former replica of the model says nothing of this one.
            if replica is not None and sent_s >= replica.since_s:
                replica.worked_on_elsewhere_s = sent_s
                self._worked_on_elsewhere.append(replica)

    def doubt(self, reservation: Reservation, now_s: float, *, at_once: bool = False) -> bool:
        """Doubt the replica of a request that it failed; `at_once`: the first probe may be sent at once. Returns whether
        the request was a probe."""
        model, server, replica = reservation.replica.model, reservation.server, reservation.replica
        if not self._holds(server, replica):
            return False
        found = self._doubts.setdefault(model, {}).get(server.name)
        if found is None or found.replica is not replica:
            self._doubts[model][server.name] = _Doubt(replica, server, now_s if at_once else now_s + _FIRST_PAUSE_S)
            return False
        if found.probe is not reservation:
            return False
        found.probe, found.pause_s = None, min(2 * found.pause_s, _MAX_PAUSE_S)
        found.probe_from_s = now_s + found.pause_s
        return True

    def died(self, server: Server, replica: Replica, now_s: float) -> None:
        """Doubt a replica whose stub has died, which another process, the fleet's leader, is to load anew."""
        if self._holds(server, replica):
            self._doubts.setdefault(replica.model, {})[server.name] = _Doubt(replica, server, now_s + _FIRST_PAUSE_S)

    def avoided(self, model: str) -> frozenset[str]:
        """Servers whose replicas of the model are in doubt."""
        doubts = self._doubts.get(model)
        if not doubts:
            return frozenset()
        for name in [name for name, each in doubts.items() if not self._holds(each.server, each.replica)]:
            self._clear(model, name)
        return frozenset(doubts)

    def due_probe(self, model: str, now_s: float) -> str | None:
        """A server to which a request for the model may go as a probe now; None if there is none."""
        for name in self.avoided(model):
            doubt = self._doubts[model][name]
            # Ended without telling anything: given up, cancelled, or hedged and answered elsewhere.
            if doubt.probe is not None and not doubt.probe.is_held:
                doubt.probe, doubt.probe_from_s = None, now_s + doubt.pause_s
            if doubt.probe is None and now_s >= doubt.probe_from_s and doubt.server.is_open:
                return name
        return None

    def begin_probe(self, reservation: Reservation) -> None:
        """Note that this request is sent as a probe."""
        if (doubt := self._doubts.get(reservation.replica.model, {}).get(reservation.server.name)) is not None:
            doubt.probe = reservation

    def _holds(self, server: Server, replica: Replica) -> bool:
        """Whether the replica is still there; one that is loaded anew is another."""
        return (
            replica.state is ModelState.READY
            and self._fleet.servers.get(server.name) is server
            and server.replicas.get(replica.model) is replica
        )

    def _clear(self, model: str, server: str) -> None:
        doubts = self._doubts[model]
        doubts.pop(server, None)
        if not doubts:
            del self._doubts[model]
