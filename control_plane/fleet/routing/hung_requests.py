"""Finds queries of death among requests that were given up: a replica hangs in such a request after its caller has left.

A hung stub is ended (`models/revivals`), mostly after that caller has left. So requests that were given up at a silent replica are
remembered until the replica answers, or is ended; in the latter case they become suspects, like requests under which a stub died.
Until then equal requests wait, so that at most one replica hangs at a time, also if they reach other workers of the gateway: the
workers tell each other which requests must wait (`workers/messages/between_workers`). `fleet/routing/dispatch` reports what is given
up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf

from control_plane.core.errors import DeadlineExceeded, QueryOfDeath
from control_plane.core.infer_call import InferCall
from control_plane.fleet.domain.health.overdue import is_behind, is_silent, may_hang
from control_plane.fleet.view.reservations import Reservation
from control_plane.inference.domain.queries_of_death import Digest
from control_plane.inference.retries.queries_of_death import Hashable, QueriesOfDeath, digest_at_once, digest_of
from control_plane.triton.open_streams import MOST_SUSPECTS

_VERDICT_S = 10.0
"""Longest time from when a request was given up for which equal ones wait: a stub that hangs is mostly ended sooner."""


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
    def until_s(self) -> float:
        """Until when equal requests wait."""
        return self.at_s + _VERDICT_S

    @property
    def has_hung(self) -> bool:
        """Whether the replica was ended since it hung, presumably in this one: it has not answered what was sent later."""
        replica = self.reservation.replica
        return replica.has_hung and not self.is_answered and may_hang(replica, sent_s=self.reservation.started_s)

    @property
    def is_over(self) -> bool:
        """Whether it has shown whether the replica hangs in it, or is gone."""
        return self.is_answered or self.reservation.replica.is_dead or not self.reservation.is_current

    @property
    def is_answered(self) -> bool:
        """Whether the replica has answered since what was sent after this one: earlier ones are answered before it."""
        replica = self.reservation.replica
        return replica.answered_s > self.at_s and replica.answered_sent_s > self.reservation.started_s

    def may_be_judged(self, now_s: float, *, is_doubted: bool) -> bool:
        """Whether it will soon be known if the replica hangs in it, by those who wait there or probe it, and there is reason to
        wait for that: it is suspect, or the replica has been silent for too long."""
        replica = self.reservation.replica
        is_awaited = replica.waiting or is_doubted or replica.worked_on_elsewhere_s != inf
        if now_s >= self.until_s or not is_awaited:
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
        self.tell: Callable[[Digest, float], None] = lambda digest, until_s: None
        """Told until when requests equal to one of this process are to wait in the others; 0: no longer."""
        self._deaths = deaths
        self._doubted = doubted
        self._given_up: dict[tuple[str, str], list[_GivenUp]] = {}
        """(Server, model) -> the requests."""
        self._told = set[Digest]()
        self._suspected_elsewhere: dict[Digest, float] = {}
        """Requests that were given up in other processes -> until when equal ones wait."""
        self._looked = asyncio.Event()
        """Set, and replaced by another, with each look."""

    def watches(self, model: str) -> bool:
        """Whether requests of this model have to await a `verdict`."""
        # Every request asks.
        if not self._given_up and not self._suspected_elsewhere:
            return False
        return any(each == model for _, each in self._given_up) or any(each == model for each, _ in self._suspected_elsewhere)

    async def verdict(self, request: Hashable, call: InferCall, *, deadline_s: float) -> None:
        """Wait while a replica may hang in an equal request. Raises DeadlineExceeded: until the deadline."""
        digest: Digest | None = None
        try:
            async with asyncio.timeout_at(deadline_s):
                while self.watches(call.model_name):
                    if digest is None:
                        digest = await digest_of(request.content(call), call)
                    if digest not in self._suspected_elsewhere and digest not in await self._being_judged(call.model_name):
                        return
                    await self._looked.wait()
        except TimeoutError as exc:
            raise DeadlineExceeded("it was not sent to Triton: an equal request may have hung one of the model's copies") from exc

    def learn(self, digest: Digest, until_s: float) -> None:
        """Have requests of this digest wait until then, as another process of the gateway says; 0: no longer."""
        if until_s:
            self._suspected_elsewhere[digest] = until_s
        else:
            self._suspected_elsewhere.pop(digest, None)

    async def _being_judged(self, model: str) -> dict[Digest, float]:
        """Return the model's requests of this process for which equal ones wait, and until when."""
        now_s, doubted = asyncio.get_running_loop().time(), self._doubted(model)
        of_model = [(server, here) for (server, name), here in self._given_up.items() if name == model]
        judged = [each for server, here in of_model for each in here if each.may_be_judged(now_s, is_doubted=server in doubted)]
        return {await each.digested(): each.until_s for each in judged}

    def gave_up(self, asked: Hashable | Digest, call: InferCall, reservation: Reservation, *, was_suspect: bool, now_s: float) -> None:
        """Note that a request was not answered before its caller gave it up; `asked` is the request, or its digest where that is known."""
        replica = reservation.replica
        if replica.is_dead or is_behind(replica, sent_s=reservation.started_s, now_s=now_s):
            return
        here = self._given_up.setdefault((reservation.server.name, replica.model), [])
        here[:] = [each for each in here if not each.is_answered]
        # Not the first alone: others that are given up sooner would hide what the replica hangs in.
        if len(here) < MOST_SUSPECTS:
            content, digest = (None, asked) if isinstance(asked, tuple) else (asked.content(call), None)
            given_up = _GivenUp(reservation, now_s, was_suspect, content, call, digest)
            here.append(given_up)
            if given_up.may_be_judged(now_s, is_doubted=reservation.server.name in self._doubted(replica.model)):
                self._tell_at_once(given_up)

    def _tell_at_once(self, given_up: _GivenUp) -> None:
        """Tell other processes, before the caller tries again there. Of a large request they are told with the next look."""
        if given_up.digest is None:
            assert given_up.content is not None
            given_up.digest = digest_at_once(given_up.content, given_up.call)
        if given_up.digest is not None:
            self._told.add(given_up.digest)
            self.tell(given_up.digest, given_up.until_s)

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
                    self._deaths.blame(digest, server, was_suspect=was_suspect, is_stub=True)
        await self._tell_changes()
        looked, self._looked = self._looked, asyncio.Event()
        looked.set()

    async def _tell_changes(self) -> None:
        """Tell other processes for which requests to wait, and for which no longer."""
        now_s = asyncio.get_running_loop().time()
        judged = dict[Digest, float]()
        for model in {model for _, model in self._given_up}:
            judged |= await self._being_judged(model)
        told, self._told = self._told, set(judged)
        for digest in judged.keys() - told:
            self.tell(digest, judged[digest])
        for digest in told - judged.keys():
            self.tell(digest, 0)
        for digest in [each for each, until_s in self._suspected_elsewhere.items() if now_s >= until_s]:
            del self._suspected_elsewhere[digest]
