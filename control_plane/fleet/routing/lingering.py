"""Reservations of cancelled requests: few models stop computing when a request is cancelled, and Triton does not say when they are
done. Used by `fleet/routing/hedging`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable

from control_plane.fleet.domain.routing.hedging import lingers_s
from control_plane.fleet.view.reservations import Reservation


class LingeringReservations:
    """Reservations that are held after their requests were cancelled: for as long again as these have taken, or until
    their replica has answered a request that it was sent later, and so is free again.

    Without them a server that computes for nobody would seem idle: what is sent there would be late, be hedged,
    and be cancelled in its turn.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        """`now_s` is the event loop's time."""
        self._now_s = now_s
        self._held: defaultdict[int, list[tuple[float, Reservation]]] = defaultdict(list)
        """Replica's identity -> since when which reservations are held."""

    def hold(self, reservation: Reservation) -> None:
        """Hold a reservation whose request has just been cancelled."""
        held = now_s, reservation = self._now_s(), reservation
        self._held[id(reservation.replica)].append(held)
        asyncio.get_running_loop().call_later(lingers_s(now_s - reservation.started_s), self._release, held)

    def answered(self, by: Reservation) -> None:
        """Note that a replica has answered the request of this reservation."""
        if self._held:
            for held in self._held.get(id(by.replica), [])[:]:
                if held[0] <= by.started_s:
                    self._release(held)

    def _release(self, held: tuple[float, Reservation]) -> None:
        replica = id(held[1].replica)
        at_replica = self._held.get(replica, [])
        if held in at_replica:
            at_replica.remove(held)
            held[1].release(answered=False)
            if not at_replica:
                del self._held[replica]
