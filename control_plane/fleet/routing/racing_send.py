"""One of the two sends of a hedged request; `fleet/routing/hedging` lets them race."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from control_plane.concurrency.shared_task import outcome
from control_plane.concurrency.task_owner import TaskOwner
from control_plane.core.errors import GatewayStopping
from control_plane.core.infer_call import Outcome
from control_plane.fleet.view.reservations import Reservation
from control_plane.inference.requests import ServerRequest
from control_plane.inference.retries.attempt import Send
from control_plane.triton.ports import Slot, Upstream

AnswerT = TypeVar("AnswerT")


class SlottedRequest(ServerRequest[AnswerT], Protocol[AnswerT]):
    """A request whose `send` tells the server's client which slot it is in."""

    slot: Slot | None


class RacingSend(Generic[AnswerT]):
    """Send of a request to one server, in a task of its own; it is its own `triton/ports.Slot`, and so knows when
    Triton has ended it."""

    def __init__(
        self,
        request: SlottedRequest[AnswerT],
        permit: Slot,
        reservation: Reservation,
        tasks: TaskOwner,
        *,
        timeout_s: float,
        recallable: Callable[[Send[AnswerT], Reservation], Send[AnswerT]],
        lost: Callable[[Reservation], object],
    ) -> None:
        """Begin to send. `permit` is the request's slot at its model; `recallable` makes the send end in an error if
        its server falls silent; `lost` takes the reservation back of a send that has lost, once it is over."""
        self.reservation = reservation
        self._request = request
        self._permit: Slot | None = permit
        self._lost = lost
        self._has_lost = False
        self._holds = 0
        self.keep()
        send = recallable(self._send, reservation)
        self.task = tasks.create_task(outcome(lambda: send(reservation.upstream, timeout_s=timeout_s)), name="hedged-send")
        self.task.add_done_callback(lambda task: self.let_go())

    def _send(self, server: Upstream, /, *, timeout_s: float) -> Awaitable[AnswerT]:
        request = self._request
        # The slot is read while the send is made; the request's other send has one of its own.
        was, request.slot = request.slot, self
        try:
            return request.send(server, timeout_s=timeout_s)
        finally:
            request.slot = was

    @property
    def server(self) -> str:
        """Name of the server that it goes to."""
        return self.reservation.server.name

    @property
    def result(self) -> AnswerT | Exception | None:
        """Its answer or error; None while there is none, and where it was cancelled."""
        return self.task.result() if self.task.done() and not self.task.cancelled() else None

    @property
    def is_good(self) -> bool:
        """Whether it was answered without an error."""
        result = self.result
        return result is not None and not isinstance(result, Exception) and self._request.outcome(result) is Outcome.ANSWERED

    def answer(self) -> AnswerT:
        """Return the answer, good or bad. Raises what the send raised, GatewayStopping."""
        if self.task.cancelled():
            raise GatewayStopping
        result = self.task.result()
        if isinstance(result, Exception):
            raise result
        return result

    def lose(self) -> None:
        """End it, as another one has been answered or failed it; its reservation is its own now."""
        self._has_lost = True
        permit, self._permit = self._permit, None
        if permit is not None:  # the model's next request need not wait for what is superfluous
            for _ in range(self._holds):
                permit.let_go()
        if self._holds:
            self.task.cancel()
        else:
            self._lost(self.reservation)

    # Its slot

    @property
    def expected_s(self) -> float:
        return 0.0 if self._permit is None else self._permit.expected_s

    @property
    def is_superfluous(self) -> bool:
        return self._has_lost

    @property
    def tells_time_left(self) -> bool:
        return self._permit is not None and self._permit.tells_time_left

    def keep(self) -> None:
        self._holds += 1
        if self._permit is not None:
            self._permit.keep()

    def let_go(self) -> None:
        self._holds -= 1
        if self._permit is not None:
            self._permit.let_go()
        if self._has_lost and not self._holds:
            self._lost(self.reservation)


async def first_good(sends: list[RacingSend[AnswerT]]) -> RacingSend[AnswerT] | None:
    """Wait for the first good answer, and return whose it is; None: there is none."""
    under_way = sends
    while under_way:
        await asyncio.wait([each.task for each in under_way], return_when=asyncio.FIRST_COMPLETED)
        if good := [each for each in under_way if each.is_good]:
            return good[0]
        under_way = [each for each in under_way if not each.task.done()]
    return None
