"""Permit of one request: its place in its tenant's limits and, from `acquire_slot` on, its slot at its model.

`admission/admission` issues it. Whatever becomes of the request, its permit is released.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf

from control_plane.admission.concurrency_limiter import ConcurrencyLimiter
from control_plane.admission.domain.fair_queue import Ticket
from control_plane.admission.domain.patience_lanes import lane_of
from control_plane.admission.model_slots import ModelSlots
from control_plane.admission.standing_refusal import StandingRefusal
from control_plane.admission.tenant_limits import TenantAccount
from control_plane.admission.waiting_room import Place
from control_plane.core.errors import LimitExceeded, Overloaded
from control_plane.objects.domain.tenant import LOCAL
from control_plane.telemetry.shed_reason import ShedReason

# Least cost of a request in compute units: the fair queue would never charge a tenant for requests of cost 0.
_MIN_COST = 1e-3


class Permit:
    """Permit of an admitted request: holds its place in the tenant's limits and its slot at the model;
    released exactly once.

    It is the `triton/ports.Slot` of its request: the slot is kept beyond the release while Triton goes on. For the model's
    `ConcurrencyLimiter` it is the `HeldSlot`.
    """

    __slots__ = (
        "_account",
        "_forsaken",
        "_is_preempted",
        "_is_released",
        "_kept",
        "_limiter",
        "_model",
        "_place",
        "_slots",
        "_started_s",
        "ahead",
        "at_end",
        "continues_sequence",
        "cost",
        "deadline_s",
        "has_left",
        "held_bytes",
        "is_waiting",
        "sent_s",
        "tells_time_left",
        "ticket",
    )

    def __init__(self, slots: ModelSlots, account: TenantAccount) -> None:
        self._slots = slots
        self._account = account
        self._limiter: ConcurrencyLimiter | None = None
        """Limiter of the model at which the request holds a slot; None while it holds none."""
        self._kept = self._forsaken = 0
        self.ticket: Ticket | None = None
        self._place: Place | None = None
        """The place in the waiting room that the request has, or had."""
        self.has_left = self._is_preempted = self._is_released = False
        self.is_waiting = False
        """Whether the request waits for a slot at a busy model."""
        self.continues_sequence = False
        """Whether the request goes on with a sequence, and needs a slot of those for such (`ModelSlots.of`)."""
        self.at_end: Callable[[], object] | None = None
        """Called once the permit is released and its slot is free, where it had one."""
        self.held_bytes = 0
        """Bytes that the request holds while it waits."""
        self.tells_time_left = False
        """Whether Triton is told how much time the request has left."""

    @property
    def priority(self) -> int:
        """Priority of the request's tenant, lowered for work in the background."""
        return self._slots.priority_of(self._account.tenant)

    @property
    def is_in_background(self) -> bool:
        """Whether the request is work that yields to all other requests."""
        return self._slots.is_in_background

    @property
    def is_guest(self) -> bool:
        """Whether the request comes from another region."""
        return self._slots.is_for_guests

    def mark_as_guest(self) -> None:
        """Note that the request comes from another region: it never waits, and takes a slot only while there is idle room."""
        self._slots = self._slots.for_guests()

    @property
    def stays_in_region(self) -> bool:
        """Whether its tenant's requests are computed in this region only."""
        return self._account.tenant.regions == LOCAL

    @property
    def yields(self) -> bool:
        """Whether the request is work in the background that models may interrupt for callers."""
        return self._slots.is_preempted is not None

    @property
    def is_interrupted(self) -> bool:
        """Whether callers' requests interrupt its computation, so that the time which that takes says nothing of theirs."""
        return self._is_preempted

    def renewed(self) -> Permit:
        """Return another permit of the same request, for a turn at another model; this one is to be released."""
        self._account.in_flight += 1
        permit = Permit(self._slots, self._account)
        permit.held_bytes = self.held_bytes
        return permit

    def for_part(self) -> PartPermit:
        """Return a permit for a part of the same request, for a turn at that part's model while this one is held."""
        permit = PartPermit(self._slots, self._account)
        permit.held_bytes = self.held_bytes
        return permit

    async def acquire_slot(self, model: str, *, cost_units: float, deadline_s: float) -> None:
        """Acquire a slot at the model, waiting for it where the model is busy; may be called once. Cancelled
        it holds no slot.

        Raises Overloaded: the request would not be answered before the loop's time `deadline_s`, too many
        wait, or it is another region's and there is no idle room. LimitExceeded: too many of its tenant wait.
        """
        if self.is_guest:
            if not self.try_acquire_slot(model, cost_units=cost_units, deadline_s=deadline_s, now_s=self._slots.now_s()):
                raise self._slots.overloaded(self._account.tenant.name, ShedReason.NO_IDLE_ROOM, model, 1.0)
            return
        gate = self._slots.background
        if self._slots.is_in_background:
            asks = self._slots.is_preempted
            is_preempted = self._is_preempted = asks is not None and await asks(model)
            await gate.begin(model, is_preempted=is_preempted)
            end: Callable[[], None] = partial(gate.end, is_preempted=is_preempted)
        else:
            gate.request_began()  # before it has its turn: what waits is not to be passed by work in the background
            end = gate.request_ended
        try:
            await self._acquire(model, cost_units, deadline_s)
        except BaseException:
            end()
            raise

    async def _acquire(self, model: str, cost_units: float, deadline_s: float) -> None:
        """Acquire a slot at the model, once the gate for work in the background is passed. Raises as `acquire_slot`."""
        if not self._try_acquire(model, cost_units, deadline_s, self._slots.now_s()):
            cost = cost_units if cost_units > _MIN_COST else _MIN_COST
            limiter = self._slots.of(model, continues_sequence=self.continues_sequence)
            await self._wait(limiter, model, cost, deadline_s)
            self._hold(limiter, model, cost, deadline_s, self._slots.now_s())

    def try_acquire_slot(self, model: str, *, cost_units: float, deadline_s: float, now_s: float) -> bool:
        """Acquire a slot at the model if one is free now; False: `acquire_slot` waits for it."""
        if self._slots.is_special:
            return self._slots.is_for_guests and self._try_as_guest(model, cost_units, deadline_s, now_s)
        if not self._try_acquire(model, cost_units, deadline_s, now_s):
            return False
        self._slots.background.request_began()
        return True

    def _try_as_guest(self, model: str, cost_units: float, deadline_s: float, now_s: float) -> bool:
        """Acquire a slot for a request of another region, if there is idle room."""
        if not self._slots.has_idle_room(model, cost_units, left_s=deadline_s - now_s):
            return False
        if not self._try_acquire(model, cost_units, deadline_s, now_s):
            return False
        self.deadline_s = inf  # that it was late says nothing of this region: it may have come with little time
        self._slots.background.request_began()
        return True

    def _try_acquire(self, model: str, cost_units: float, deadline_s: float, now_s: float) -> bool:
        assert self._limiter is None, "a permit is for one turn"
        assert not self._is_released, "the permit was released before"
        cost = cost_units if cost_units > _MIN_COST else _MIN_COST
        limiter = None if self.continues_sequence else self._slots.models.get(model)  # found without a call, as most are
        limiter = limiter or self._slots.of(model, continues_sequence=self.continues_sequence)
        if not limiter.try_acquire(self._account.tenant.name, cost, deadline_s, now_s):
            return False
        self._hold(limiter, model, cost, deadline_s, now_s)
        return True

    def _hold(self, limiter: ConcurrencyLimiter, model: str, cost: float, deadline_s: float, now_s: float) -> None:
        self._limiter, self._model, self.cost, self.deadline_s = limiter, model, cost, deadline_s
        self.ahead = limiter.work - cost
        self._account.units_in_flight += cost
        self._started_s = now_s

    def release(self, *, sent_s: float = float("-inf"), now_s: float | None = None) -> None:
        """Give back all that the permit holds, after the request has ended, however it did.

        The request was sent to Triton at the loop's time `sent_s`, if that was after it got its slot: a fleet
        may have had to load its model first. Infinity: it was not sent. `now_s` is the loop's time, if the caller
        has just read it.
        """
        assert not self._is_released, "the permit was released before"
        self._is_released = True
        if self.at_end is not None and not self._kept:
            self.at_end()
        account = self._account
        account.in_flight -= 1
        if self._limiter is not None:
            now_s = self._slots.now_s() if now_s is None else now_s
            account.units_in_flight -= self.cost
            account.units_ended += self.cost
            self._leave_gate(now_s)
            self.sent_s = sent_s if sent_s > self._started_s else self._started_s
            if self._is_preempted and self._limiter.is_known:
                self.sent_s = inf
            if not self._kept:
                self._release_slot(self._limiter, now_s)
            elif now_s < self.deadline_s:
                self.deadline_s, self.has_left = now_s, True  # the caller gave it no more time than that

    def _leave_gate(self, now_s: float) -> None:
        background = self._slots.background
        if self._slots.is_in_background:
            background.end(is_preempted=self._is_preempted)
        else:
            background.request_ended(now_s)

    def enter_room(self, retry_after_s: float) -> Place:
        """Take a place in the waiting room, in which the request waits for its model; what waits already shares it, as batches of one
        request do. Raises LimitExceeded, Overloaded."""
        if self._place is None or not self._place.share():
            self._place = self._slots.room.enter(self._account.tenant.name, self.held_bytes, retry_after_s=retry_after_s)
        return self._place

    @property
    def expected_s(self) -> float:
        """Estimated seconds from when the request was sent until Triton ends it; 0 if nothing is known."""
        return 0.0 if self._limiter is None else self._limiter.expected_s(self.cost, ahead=self.ahead)

    @property
    def is_superfluous(self) -> bool:
        """False: a permit does not know of another server that has answered."""
        return False

    def keep(self) -> None:
        """Keep the slot until `let_go`, for a request that Triton goes on computing though its caller has left."""
        self._kept += 1

    def let_go(self) -> None:
        """End one `keep`: Triton has ended the request, or nobody waits for that any longer."""
        if not self._kept:
            self._forsaken -= 1
            return
        # Whichever send this ends: taken for the forsaken one's it could hold the slot until that has ended, too.
        self._kept -= 1
        if self._is_released and not self._kept and self._limiter is not None:
            if self.at_end is not None:
                self.at_end()
            self._release_slot(self._limiter, self._slots.now_s())

    def forsake(self) -> None:
        """End each `keep` so far, ahead of its `let_go`: the server was silent, and the request is sent to another one.
        Its slot is that of the other send now, and the other send's time is its own."""
        self._forsaken, self._kept = self._forsaken + self._kept, 0

    def _release_slot(self, limiter: ConcurrencyLimiter, now_s: float) -> None:
        self._limiter = None  # once only: after one of several batches was forsaken, another may `keep` it after its release
        limiter.release(self._account.tenant.name, self, now_s)
        self._slots.forget_if_idle(self._model, self.continues_sequence)

    async def _wait(self, limiter: ConcurrencyLimiter, model: str, cost: float, deadline_s: float) -> None:
        """Wait for a slot in the fair queue. Raises Overloaded, LimitExceeded."""
        tenant = self._account.tenant
        try:
            place = self.enter_room(0.0)
        except (LimitExceeded, Overloaded) as exc:
            exc.retry_after_s = limiter.retry_after_s  # which takes some time: most requests find a place
            raise
        now_s = self._slots.now_s()
        ticket = self.ticket = Ticket(tenant.name, tenant.weight, self.priority, cost, lane_of(deadline_s - now_s), came_s=now_s)
        self.is_waiting = True
        try:
            reason = await limiter.acquire(ticket, deadline_s)
        finally:
            self.is_waiting = False
            place.leave()
        if reason is not None:
            error = self._slots.overloaded(tenant.name, reason, model, limiter.retry_after_s)
            if reason is ShedReason.DEADLINE:
                error.holds_for_equals = StandingRefusal(self._slots, model, ticket, deadline_s - now_s)
            raise error


class PartPermit(Permit):
    """Permit of a part of a request, whose own permit has its place in the tenant's limits, stands for its units, and has passed
    the gate for work in the background: a part that waited there would wait for the request that it is part of."""

    __slots__ = ()

    async def acquire_slot(self, model: str, *, cost_units: float, deadline_s: float) -> None:
        if not self.is_guest:
            await self._acquire(model, cost_units, deadline_s)
        elif not self._try_acquire(model, cost_units, deadline_s, self._slots.now_s()):  # there was idle room for the whole
            raise self._slots.overloaded(self._account.tenant.name, ShedReason.NO_IDLE_ROOM, model, 1.0)

    def try_acquire_slot(self, model: str, *, cost_units: float, deadline_s: float, now_s: float) -> bool:
        return self._try_acquire(model, cost_units, deadline_s, now_s)

    def _leave_gate(self, now_s: float) -> None: ...

    def _hold(self, limiter: ConcurrencyLimiter, model: str, cost: float, deadline_s: float, now_s: float) -> None:
        super()._hold(limiter, model, cost, inf if self.is_guest else deadline_s, now_s)
        self._account.units_in_flight -= cost

    def release(self, *, sent_s: float = float("-inf"), now_s: float | None = None) -> None:
        self._account.in_flight += 1
        if self._limiter is not None:
            self._account.units_in_flight += self.cost
            self._account.units_ended -= self.cost
        super().release(sent_s=sent_s, now_s=now_s)
