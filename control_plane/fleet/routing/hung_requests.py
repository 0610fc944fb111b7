"""Requests in which replicas hang, although their callers have given them up: a query of death need not be waited for.

A stub that computes nothing is ended (`models/revivals`), mostly after the caller of what it hangs in has left. So the
requests that are given up at a silent replica are remembered until the replica answers, or is ended: then they are suspect,
as those under which a stub dies. Until then equal ones wait, so that one replica hangs at a time and not all of them.
`fleet/routing/dispatch` tells of what is given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from dataclasses import dataclass

from control_plane.core.errors import DeadlineExceeded, QueryOfDeath
from control_plane.core.infer_call import InferCall
from control_plane.fleet.domain.health.overdue import is_silent, may_hang
from control_plane.fleet.view.recalls import MOST_SUSPECTS
from control_plane.fleet.view.reservations import Reservation
from control_plane.inference.domain.queries_of_death import Digest
from control_plane.inference.retries.queries_of_death import Hashable, QueriesOfDeath, Suspect, digest_of

_VERDICT_S = 5.0
"""Longest time from when a request was given up for which equal ones wait: a stub that hangs is ended sooner."""


@dataclass(slots=True, eq=False)
class _GivenUp:
    """Request that was given up at a replica that may hang in it."""

    reservation: Reservation
    at_s: float
    was_suspect: bool
    content: Sequence[bytes] | None
    """Taken while the request lives, since that of a compressed message is another one later; None: it has been digested."""
    call: InferCall
    digest: Digest | None

    @property
    def has_hung(self) -> bool:
        """Whether the replica was ended since it hung, before it answered anything else."""
        return self.reservation.replica.has_hung and not self.is_answered

    @property
    def is_over(self) -> bool:
        """Whether it has shown whether the replica hangs in it, or is gone."""
        return self.is_answered or self.reservation.replica.is_dead or not self.reservation.is_current

    @property
    def is_answered(self) -> bool:
        """Whether the replica has answered since."""
        return self.reservation.replica.answered_s > self.at_s

    def may_be_judged(self, now_s: float, *, is_doubted: bool) -> bool:
        """Whether it will soon be known if the replica hangs in it, by those who wait there or probe it, and there is reason to
        wait for that: it is suspect, or the replica has been silent for too long."""
        replica = self.reservation.replica
        if now_s >= self.at_s + _VERDICT_S or not (replica.waiting or is_doubted):
            return False
        return self.was_suspect or is_silent(replica, sent_s=self.reservation.started_s, now_s=now_s)

    async def digested(self) -> Digest:
        if self.digest is None:
            assert self.content is not None
            self.digest = await digest_of(self.content, self.call)
        self.content = None
        return self.digest


class HungRequests:
    """Record of one process's requests in which replicas may hang, the first few for each replica."""

    def __init__(self, deaths: QueriesOfDeath, *, doubted: Callable[[str], Container[str]]) -> None:
        """`doubted` returns the servers of which the replicas of a model are in doubt."""
        self._deaths = deaths
        self._doubted = doubted
        self._given_up: dict[tuple[str, str], list[_GivenUp]] = {}
        """(Server, model) -> the requests."""
        self._looked = asyncio.Event()
        """Set, and replaced by another, with each look."""

    def watches(self, model: str) -> bool:
        """Whether requests of this model have to await a `verdict`."""
        # Every request asks.
        return bool(self._given_up) and any(each == model for _, each in self._given_up)

    async def verdict(self, request: Hashable, call: InferCall, *, deadline_s: float) -> None:
        """Wait while a replica may hang in an equal request. Raises DeadlineExceeded: until the deadline."""
        digest: Digest | None = None
        try:
            async with asyncio.timeout_at(deadline_s):
                while judged := self._being_judged(call.model_name):
                    if digest is None:
                        digest = await digest_of(request.content(call), call)
                    if digest not in [await each.digested() for each in judged]:
                        return
                    await self._looked.wait()
        except TimeoutError as exc:
            raise DeadlineExceeded("it was not sent to Triton: an equal request may have hung one of the model's copies") from exc

    def _being_judged(self, model: str) -> list[_GivenUp]:
        now_s, doubted = asyncio.get_running_loop().time(), self._doubted(model)
        of_model = [(server, here) for (server, name), here in self._given_up.items() if name == model]
        return [each for server, here in of_model for each in here if each.may_be_judged(now_s, is_doubted=server in doubted)]

    def gave_up(self, request: Hashable, call: InferCall, reservation: Reservation, suspect: Suspect | None, now_s: float) -> None:
        """Note that a request was not answered before its caller gave it up."""
        replica = reservation.replica
        if replica.is_dead or not may_hang(replica, sent_s=reservation.started_s):
            return
        here = self._given_up.setdefault((reservation.server.name, replica.model), [])
        here[:] = [each for each in here if not each.is_answered]
        # Not the first alone: others that are given up sooner would hide what the replica hangs in.
        if len(here) < MOST_SUSPECTS:
            content, digest = (request.content(call), None) if suspect is None else (None, suspect.digest)
            here.append(_GivenUp(reservation, now_s, suspect is not None, content, call, digest))

    async def look(self) -> None:
        """Blame what replicas were found to hang in, and forget what others have answered after: to be called several
        times a second."""
        for key, here in list(self._given_up.items()):
            digests = {each: await each.digested() for each in list(here)}
            blamed = dict[Digest, bool]()
            """Each once for a stub -> whether it was sent as a suspect."""
            for each, digest in digests.items():
                if each.has_hung:
                    blamed[digest] = each.was_suspect or blamed.get(digest, False)
            here[:] = [each for each in here if not (each in digests and each.is_over)]
            if not here:
                del self._given_up[key]
            server, _ = key
            for digest, was_suspect in blamed.items():
                with suppress(QueryOfDeath):
                    self._deaths.hung(digest, server, was_suspect=was_suspect)
        looked, self._looked = self._looked, asyncio.Event()
        looked.set()
