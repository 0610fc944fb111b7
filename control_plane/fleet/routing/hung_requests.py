"""Requests in which replicas hang, although their callers have given them up: a query of death need not be waited for.

A stub that computes nothing is ended (`models/revivals`), mostly after the caller of what it hangs in has left. So the
first request that is given up at a silent replica is remembered until the replica answers, or is ended: then that request
is suspect, as one under which a stub dies. `fleet/routing/dispatch` tells of what is given up.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from control_plane.core.errors import QueryOfDeath
from control_plane.core.infer_call import InferCall
from control_plane.fleet.domain.fleet import Replica
from control_plane.fleet.domain.health.overdue import may_hang
from control_plane.fleet.view.reservations import Reservation
from control_plane.inference.domain.queries_of_death import Digest
from control_plane.inference.retries.queries_of_death import Hashable, QueriesOfDeath, Suspect, digest_of


@dataclass(slots=True)
class _GivenUp:
    """Request that was given up, and the replica that may hang in it."""

    replica: Replica
    at_s: float
    was_suspect: bool
    request: Hashable | None
    """None: it has been digested, and is not kept alive."""
    call: InferCall
    digest: Digest | None

    @property
    def is_answered(self) -> bool:
        """Whether the replica has answered since."""
        return self.replica.answered_s > self.at_s

    @property
    def is_over(self) -> bool:
        """Whether it has shown whether the replica hangs in it."""
        return self.is_answered or self.replica.is_dead

    async def digested(self) -> Digest:
        if self.digest is None:
            assert self.request is not None
            self.digest = await digest_of(self.request, self.call)
        self.request = None
        return self.digest


class HungRequests:
    """Record of one process's requests in which replicas may hang, one for each replica."""

    def __init__(self, deaths: QueriesOfDeath) -> None:
        self._deaths = deaths
        self._given_up: dict[tuple[str, str], _GivenUp] = {}
        """(Server, model) -> the request."""

    def gave_up(self, request: Hashable, call: InferCall, reservation: Reservation, suspect: Suspect | None, now_s: float) -> None:
        """Note that a request was not answered before its caller gave it up."""
        key, replica = (reservation.server.name, reservation.replica.model), reservation.replica
        known = self._given_up.get(key)
        if (known is None or known.replica is not replica or known.is_over) and may_hang(replica, sent_s=reservation.started_s):
            digest = None if suspect is None else suspect.digest
            self._given_up[key] = _GivenUp(replica, now_s, suspect is not None, request, call, digest)

    async def look(self) -> None:
        """Blame what replicas were found to hang in, and forget what others have answered after: to be called several
        times a second."""
        for key, each in list(self._given_up.items()):
            digest = await each.digested()
            if not each.is_over:
                continue
            if self._given_up.get(key) is each:
                del self._given_up[key]
            if each.replica.has_hung and not each.is_answered:
                server, _ = key
                with suppress(QueryOfDeath):
                    self._deaths.hung(digest, server, was_suspect=each.was_suspect)
