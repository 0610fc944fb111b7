"""Recalls requests, so that they are sent to another replica: from servers that have fallen silent, from replicas whose stub has died,
and from replicas that answer nobody while others of their model do.

`fleet/routing/resending` decides which requests may be sent again, `fleet/routing/dispatch` does it, and `fleet/view/state` calls
`sweep` whenever its view has changed.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import TypeVar

from control_plane.concurrency.abort_scope import AbortScope
from control_plane.core.errors import Recall, RecallCause, UpstreamUnavailable
from control_plane.fleet.domain.fleet import Fleet, Replica
from control_plane.fleet.domain.health.overdue import PROBE_S, may_hang, overdue
from control_plane.fleet.view.reservations import Reservation
from control_plane.inference.retries.attempt import Send
from control_plane.triton.open_streams import MOST_SUSPECTS
from control_plane.triton.ports import Upstream

AnswerT = TypeVar("AnswerT")

_ASKS_AGAIN_S = 1.0
"""How long a request that must not be sent again is left alone: the retry budget has a request to spare in a second."""


@dataclass(slots=True)
class _InFlight:
    """A request at a server."""

    reservation: Reservation
    may: Callable[[RecallCause], bool]
    ask_from_s: float = 0.0


class Recalls:
    """Register of the repeatable requests in flight, by server."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._in_flight: defaultdict[str, dict[AbortScope, _InFlight]] = defaultdict(dict)
        """Server -> the requests there, each by the scope of its send, in the order in which they were sent."""
        self._is_to_sweep_again = False

    def recallable(self, send: Send[AnswerT], reservation: Reservation, may: Callable[[RecallCause], bool]) -> Send[AnswerT]:
        """Return `send` for one request, cancelled for a cause for which it `may` be sent again; it raises UpstreamUnavailable then.

        What `may` has once granted is not asked for again: it may charge for it.
        """
        in_flight = self._in_flight[reservation.server.name]

        async def sent(upstream: Upstream, /, *, timeout_s: float) -> AnswerT:
            scope = AbortScope()
            async with scope:
                in_flight[scope] = _InFlight(reservation, may)
                try:
                    return await send(upstream, timeout_s=timeout_s)
                finally:
                    in_flight.pop(scope, None)

        return sent

    def sweep(self) -> None:
        """Recall the requests at silent servers that may be sent again and whose models are ready elsewhere. The others
        wait: they are answered if the server goes on."""
        for name, server in self._fleet.servers.items():
            if server.is_silent and (in_flight := self._in_flight.get(name)):
                now_s = asyncio.get_running_loop().time()
                elsewhere = {each.reservation.replica.model for each in in_flight.values()}
                elsewhere = {model for model in elsewhere if self._fleet.ready_replicas(model)}
                for scope, request in list(in_flight.items()):
                    if request.reservation.replica.model in elsewhere and now_s >= request.ask_from_s:
                        self._recall(scope, request, RecallCause.SERVER_SILENT, f"server '{name}' says nothing")

    def died(self, server: str, replica: Replica) -> None:
        """Recall the requests at a replica whose stub has died. The oldest are suspect, but of what was sent since it was dead
        none; of one that has hung, those in which it may have."""
        why = f"the Python process of '{replica.model}' on server '{server}' has died"
        for number, (scope, request) in enumerate(list(self._at(server, replica))):
            sent_s = request.reservation.started_s
            was_there = not replica.was_dead_at(sent_s) and (not replica.has_hung or may_hang(replica, sent_s=sent_s))
            self._recall(scope, request, RecallCause.STUB_DIED, why, is_suspect=was_there and number < MOST_SUSPECTS)

    def recall_overdue(self, now_s: float, doubted: Callable[[str], Container[str]]) -> Iterator[Reservation]:
        """Recall requests from replicas that answer nobody, while others of their models do, and yield the reservations
        of those that are. `doubted` returns the servers on which a model had better not be used."""
        for name, in_flight in list(self._in_flight.items()):
            server = self._fleet.servers.get(name)
            if server is None or server.is_silent:
                continue
            for scope, request in list(in_flight.items()):
                replica, sent_s = request.reservation.replica, request.reservation.started_s
                if now_s < request.ask_from_s or now_s - sent_s < PROBE_S:
                    continue
                if overdue(self._fleet, server, replica, sent_s=sent_s, now_s=now_s, avoid=doubted(replica.model)):
                    why = f"server '{name}' does not answer for '{replica.model}'"
                    if self._recall(scope, request, RecallCause.REPLICA_SILENT, why):
                        yield request.reservation

    def forget(self, server: str) -> None:
        """Forget a server that has left."""
        self._in_flight.pop(server, None)

    def _at(self, server: str, replica: Replica) -> Iterator[tuple[AbortScope, _InFlight]]:
        in_flight = self._in_flight.get(server, {})
        return ((scope, request) for scope, request in in_flight.items() if request.reservation.replica is replica)

    def _recall(self, scope: AbortScope, request: _InFlight, cause: RecallCause, why: str, *, is_suspect: bool = False) -> bool:
        """Cancel a request that may be sent again; one that may not is asked for again later."""
        loop = asyncio.get_running_loop()
        if request.may(cause):
            del self._in_flight[request.reservation.server.name][scope]
            scope.abort(UpstreamUnavailable(f"{why}; try again shortly", recall=Recall(cause, is_suspect)))
            return True
        request.ask_from_s = loop.time() + _ASKS_AGAIN_S
        if cause is RecallCause.SERVER_SILENT and not self._is_to_sweep_again:
            self._is_to_sweep_again = True
            loop.call_at(request.ask_from_s, self._sweep_again)
        return False

    def _sweep_again(self) -> None:
        self._is_to_sweep_again = False
        self.sweep()
