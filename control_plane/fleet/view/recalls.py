"""Takes requests back from servers that have fallen silent, so that they are sent again to another one.

`fleet/routing/resending` says which requests may be sent again, `fleet/routing/dispatch` does it, and
`fleet/view/state` sweeps whenever its view has changed.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from control_plane.core.errors import UpstreamUnavailable
from control_plane.fleet.domain.fleet import Fleet
from control_plane.fleet.view.reservations import Reservation
from control_plane.inference.attempt import Send
from control_plane.triton.ports import Upstream

AnswerT = TypeVar("AnswerT")

_ASKS_AGAIN_S = 1.0
"""How long a request that must not be sent again is left alone: the retry budget has a request to spare in a second."""


@dataclass(slots=True)
class _InFlight:
    """A request at a server."""

    model: str
    may: Callable[[], bool]
    ask_from_s: float = 0.0


class Recalls:
    """Register of the repeatable requests in flight, by server."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._in_flight: defaultdict[str, dict[asyncio.Timeout, _InFlight]] = defaultdict(dict)
        """Server -> the requests there, each by its deadline."""
        self._is_to_sweep_again = False

    def recallable(self, send: Send[AnswerT], reservation: Reservation, may: Callable[[], bool]) -> Send[AnswerT]:
        """Return `send` for one request, cancelled if the server falls silent, another replica is ready, and it `may` be
        sent again; it raises UpstreamUnavailable then.

        What `may` has once granted is not asked for again: it may charge for it.
        """
        server, model, in_flight = reservation.server.name, reservation.replica.model, self._in_flight[reservation.server.name]

        async def sent(upstream: Upstream, /, *, timeout_s: float) -> AnswerT:
            recalled = asyncio.timeout(None)
            try:
                async with recalled:
                    in_flight[recalled] = _InFlight(model, may)
                    try:
                        return await send(upstream, timeout_s=timeout_s)
                    finally:
                        in_flight.pop(recalled, None)
            except TimeoutError:
                if not recalled.expired():
                    raise
                raise UpstreamUnavailable(f"server '{server}' says nothing; try again shortly", is_silence=True) from None

        return sent

    def sweep(self) -> None:
        """Recall the requests at silent servers that may be sent again and whose models are ready elsewhere. The others
        wait: they are answered if the server goes on."""
        for name, server in self._fleet.servers.items():
            if server.is_silent and (in_flight := self._in_flight.get(name)):
                now_s = asyncio.get_running_loop().time()
                elsewhere = {model for model in {each.model for each in in_flight.values()} if self._fleet.ready_replicas(model)}
                for recalled, request in list(in_flight.items()):
                    if request.model not in elsewhere or now_s < request.ask_from_s:
                        continue
                    if request.may():
                        del in_flight[recalled]
                        recalled.reschedule(now_s)
                    else:
                        request.ask_from_s = now_s + _ASKS_AGAIN_S
                        if not self._is_to_sweep_again:
                            self._is_to_sweep_again = True
                            asyncio.get_running_loop().call_at(request.ask_from_s, self._sweep_again)

    def _sweep_again(self) -> None:
        self._is_to_sweep_again = False
        self.sweep()

    def forget(self, server: str) -> None:
        """Forget a server that has left."""
        self._in_flight.pop(server, None)
