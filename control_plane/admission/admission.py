"""Admission control: a request's tenant limits are checked on its head, and its model's concurrency limit
before it is sent.

A frontend calls `Admission.check` before it reads a body; `inference/` calls `Admission.admit` before it parses
one, and `Permit.acquire_slot` before it sends to Triton. Whatever becomes of the request, its permit is released.
This module knows no protocol: an error says how long to wait, frontends render it.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from copy import copy
from functools import partial

from control_plane.admission.background import BackgroundGate
from control_plane.admission.concurrency_limiter import ConcurrencyLimiter, SlotLimits
from control_plane.admission.domain.fair_queue import QueueLimits, Ticket
from control_plane.admission.domain.patience_lanes import lane_of
from control_plane.admission.rate_leases import RateLeases, Undecided
from control_plane.admission.tenant_limits import ShedCounts, TenantLimits, TenantSource, TenantUsage
from control_plane.admission.waiting_room import Place, WaitingLimits, WaitingRoom
from control_plane.core.errors import Overloaded
from control_plane.objects.domain.tenant import Tenant
from control_plane.telemetry.shed_reason import ShedReason

# Least cost of a request in compute units: the fair queue would never charge a tenant for requests of cost 0.
_MIN_COST = 1e-3

# Most idle models whose measured pace is remembered: clients may send any model name.
_MAX_IDLE_MODELS = 1024

# By so much priorities are lowered in the background: below those of any tenant.
_BACKGROUND = 1_000_000_000

# For tests of one model, whose queue has bounds of its own.
_UNBOUNDED = WaitingLimits(requests=10**9, requests_per_tenant=10**9, size_bytes=10**15, bytes_per_tenant=10**15)

_WHY = {
    ShedReason.QUEUE_FULL: "too many requests wait for model {model!r}; try again later",
    ShedReason.DEADLINE: "model {model!r} is too busy to answer before the request's deadline; try again later or give it more time",
}


class Admission:
    """Admission control of one process: issues a permit for each request, or says why not."""

    def __init__(
        self,
        known: TenantSource,
        *,
        slots: SlotLimits,
        sequence_slots: SlotLimits | None = None,
        queue: QueueLimits,
        waiting: WaitingLimits = _UNBOUNDED,
        now_s: Callable[[], float] = time.monotonic,
        today_s: Callable[[], float] = time.time,
        leases: RateLeases | None = None,
        servers: int = 1,
    ) -> None:
        """`now_s` is the event loop's clock, `today_s` the wall clock in seconds since 1970; `servers` is how many compute
        side by side. Requests that go on with sequences have `sequence_slots`; None: as many as others.

        Without `leases` this is the only process, and it enforces rates alone.
        """
        self.now_s = now_s
        self._slots, self._sequence_slots = slots, sequence_slots or slots
        self._queue = queue
        self._sheds: ShedCounts = ShedCounts()
        self.room = WaitingRoom(waiting, self._sheds)
        self._leases = leases or RateLeases(now_s=now_s)
        self._limits = TenantLimits(known, self._sheds, leases=self._leases, today_s=today_s)
        self.models: dict[str, ConcurrencyLimiter] = {}
        """Concurrency limiters of the models that requests have needed; see `slots`."""
        self.sequences: dict[str, ConcurrencyLimiter] = {}
        """Concurrency limiters of the requests that go on with sequences, by model."""
        self.background = BackgroundGate(servers, now_s)
        self.is_in_background = False
        self.is_preempted: Callable[[str], Awaitable[bool]] | None = None
        """See `in_background`."""

    @property
    def counts(self) -> Mapping[tuple[str, ShedReason], int]:
        """Requests shed since the process started, by tenant and reason."""
        return self._sheds

    @property
    def processes(self) -> int:
        """How many processes share the limits, this one included."""
        return self._leases.processes

    def is_limited(self, tenant: str) -> bool:
        """Whether a tenant's requests are counted against limits of its own."""
        return self._limits.account(tenant).is_limited

    def admit(self, tenant: str) -> Permit | None:
        """Admit a request on its head. Raises LimitExceeded.

        Returns None where the tenant is near its rate, and only the bucket of all processes can decide:
        `admit_when_synced` asks it.
        """
        account = self._limits.account(tenant)
        if account.is_limited and isinstance(self._limits.check(account), Undecided):
            return None
        account.in_flight += 1
        return Permit(self, account)

    async def admit_when_synced(self, tenant: str) -> Permit:
        """Admit a request after asking the token bucket of all processes. Raises LimitExceeded; cancelled it admits nothing."""
        account = self._limits.account(tenant)
        account.in_flight += 1  # before the wait: the concurrency limit counts requests that wait here too
        try:
            await self._limits.ask(account)
        except BaseException:
            account.in_flight -= 1
            raise
        return Permit(self, account)

    def check_without_permit(self, account: TenantUsage) -> bool:
        """Check and count a request that is answered at once and needs no permit, such as a cache hit. Raises LimitExceeded.

        Returns False where only the shared bucket can decide: the request then has to `admit_when_synced`.
        """
        return not (account.is_limited and isinstance(self._limits.check(account), Undecided))

    def account(self, tenant: str) -> TenantUsage:
        """Return the tenant's account with the limits that hold now, until an object in the store changes."""
        return self._limits.account(tenant)

    def check(self, tenant: str) -> None:
        """Raise LimitExceeded where `admit` would now, without admitting; for a request whose body is still to come."""
        account = self._limits.account(tenant)
        if account.is_limited:
            self._limits.precheck(account)

    def set_shares(self, shares: Mapping[str, float], *, other: float = 1.0, processes: int = 1) -> None:
        """Enforce these shares of the tenants' limits, above 0 and at most 1, and the share `other` for
        tenants not named.

        `processes` is how many share the limits, this one included.
        """
        self._leases.processes = processes
        self._limits.set_shares(shares, other=other)

    def set_spent(self, day: str, units: Mapping[str, float]) -> None:
        """Set the compute units that all processes together have used on a day (ISO 8601, UTC), by tenant.

        Call it every few seconds: between two calls this process counts what it admits itself. A day before
        the present one is ignored.
        """
        self._limits.set_spent(day, units)

    def drain_demand(self) -> dict[str, int]:
        """Return the requests since the last call by tenant, admitted or not, and start counting anew; shares
        follow from it.
        """
        return self._limits.drain_demand()

    def slots(self, model: str, *, continues_sequence: bool = False) -> ConcurrencyLimiter:
        """Return a model's concurrency limiter, made when it is first needed; of requests that go on with sequences another.

        Triton holds a request that starts a sequence until another has ended. Behind such, a request of a sequence under way
        would wait here until Triton ends that for lack of requests.
        """
        models = self.sequences if continues_sequence else self.models
        slots = models.get(model)
        if slots is None:
            limits = self._sequence_slots if continues_sequence else self._slots
            slots = models[model] = ConcurrencyLimiter(limits, self._queue, self.now_s)
        return slots

    def forget_if_idle(self, model: str, continues_sequence: bool = False) -> None:
        """Forget a model's limiter that is idle if too many are remembered; called when one of its requests has ended."""
        models = self.sequences if continues_sequence else self.models
        if len(models) > _MAX_IDLE_MODELS and models[model].are_idle:
            del models[model]

    def in_background(self, is_preempted: Callable[[str], Awaitable[bool]] | None = None) -> Admission:
        """Return this admission for work that yields to all requests; it shares limits, slots and counts with it.

        `is_preempted` says of a model whether callers' requests interrupt what it computes of this work; None: it is not to
        be interrupted.
        """
        background = copy(self)
        background.is_in_background = True
        background.is_preempted = is_preempted
        return background

    def priority_of(self, tenant: Tenant) -> int:
        """Return the priority of a tenant's requests here."""
        return tenant.priority - (_BACKGROUND if self.is_in_background else 0)

    def overloaded(self, tenant: str, reason: ShedReason, model: str, retry_after_s: float) -> Overloaded:
        """Count a request that is shed by a busy model, and return the error for its caller."""
        self._sheds[tenant, reason] += 1
        return Overloaded(_WHY[reason].format(model=model), retry_after_s=retry_after_s)


class Permit:
    """Permit of an admitted request: holds its place in the tenant's limits and its slot at the model;
    released exactly once.

    It is the `triton/ports.Slot` of its request: the slot is kept beyond the release while Triton goes on.
    """

    __slots__ = (
        "_account",
        "_admission",
        "_ahead",
        "_cost",
        "_deadline_s",
        "_forsaken",
        "_has_left",
        "_is_preempted",
        "_is_released",
        "_kept",
        "_model",
        "_sent_s",
        "_slots",
        "_started_s",
        "_ticket",
        "at_end",
        "continues_sequence",
        "held_bytes",
        "is_waiting",
    )

    def __init__(self, admission: Admission, account: TenantUsage) -> None:
        self._admission = admission
        self._account = account
        self._slots: ConcurrencyLimiter | None = None
        self._kept = self._forsaken = 0
        self._ticket: Ticket | None = None
        """Its ticket of the fair queue, if it had to wait for its slot."""
        self._has_left = False
        self._is_released = False
        self.is_waiting = False
        """Whether the request waits for a slot at a busy model."""
        self.continues_sequence = False
        """Whether the request goes on with a sequence, and needs a slot of those for such (`Admission.slots`)."""
        self.at_end: Callable[[], object] | None = None
        """Called once the permit is released and its slot is free, where it had one."""
        self.held_bytes = 0
        """Bytes that the request holds while it waits."""

    @property
    def priority(self) -> int:
        """Priority of the request's tenant, lowered for work in the background."""
        return self._admission.priority_of(self._account.tenant)

    @property
    def is_in_background(self) -> bool:
        """Whether the request is work that yields to all other requests."""
        return self._admission.is_in_background

    @property
    def yields(self) -> bool:
        """Whether the request is work in the background that models may interrupt for callers."""
        return self._admission.is_preempted is not None

    def renewed(self) -> Permit:
        """Return another permit of the same request, for a turn at another model; this one is to be released."""
        self._account.in_flight += 1
        permit = Permit(self._admission, self._account)
        permit.held_bytes = self.held_bytes
        return permit

    async def acquire_slot(self, model: str, *, cost_units: float, deadline_s: float) -> None:
        """Acquire a slot at the model, waiting for it where the model is busy; may be called once. Cancelled
        it holds no slot.

        Raises Overloaded: the request would not be answered before the loop's time `deadline_s`, or too many
        wait. LimitExceeded: too many of its tenant do.
        """
        gate = self._admission.background
        if self._admission.is_in_background:
            asks = self._admission.is_preempted
            is_preempted = self._is_preempted = asks is not None and await asks(model)
            await gate.begin(is_preempted=is_preempted)
            end: Callable[[], None] = partial(gate.end, is_preempted=is_preempted)
        else:
            gate.request_began()  # before it has its turn: what waits is not to be passed by work in the background
            end = gate.request_ended
        try:
            if not self._try_acquire(model, cost_units, deadline_s, self._admission.now_s()):
                cost = cost_units if cost_units > _MIN_COST else _MIN_COST
                slots = self._admission.slots(model, continues_sequence=self.continues_sequence)
                await self._wait(slots, model, cost, deadline_s)
                self._hold(slots, model, cost, deadline_s, self._admission.now_s())
        except BaseException:
            end()
            raise

    def try_acquire_slot(self, model: str, *, cost_units: float, deadline_s: float, now_s: float) -> bool:
        """Acquire a slot at the model if one is free now; False: `acquire_slot` waits for it."""
        if self._admission.is_in_background or not self._try_acquire(model, cost_units, deadline_s, now_s):
            return False
        self._admission.background.request_began()
        return True

    def _try_acquire(self, model: str, cost_units: float, deadline_s: float, now_s: float) -> bool:
        assert self._slots is None, "a permit is for one turn"
        assert not self._is_released, "the permit was released before"
        cost = cost_units if cost_units > _MIN_COST else _MIN_COST
        slots = None if self.continues_sequence else self._admission.models.get(model)  # found without a call, as most are
        slots = slots or self._admission.slots(model, continues_sequence=self.continues_sequence)
        if not slots.try_acquire(self._account.tenant.name, cost, deadline_s, now_s):
            return False
        self._hold(slots, model, cost, deadline_s, now_s)
        return True

    def _hold(self, slots: ConcurrencyLimiter, model: str, cost: float, deadline_s: float, now_s: float) -> None:
        self._slots, self._model, self._cost, self._deadline_s = slots, model, cost, deadline_s
        self._ahead = slots.work - cost
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
        if self._slots is not None:
            now_s = self._admission.now_s() if now_s is None else now_s
            account.units_in_flight -= self._cost
            account.units_ended += self._cost
            background = self._admission.background
            if self._admission.is_in_background:
                background.end(is_preempted=self._is_preempted)
            else:
                background.request_ended(now_s)
            self._sent_s = sent_s if sent_s > self._started_s else self._started_s
            if not self._kept:
                self._release_slot(self._slots, now_s)
            elif now_s < self._deadline_s:
                self._deadline_s, self._has_left = now_s, True  # the caller gave it no more time than that

    def enter_room(self, retry_after_s: float) -> Place:
        """Take a place in the waiting room, in which the request waits for its model. Raises LimitExceeded, Overloaded."""
        return self._admission.room.enter(self._account.tenant.name, self.held_bytes, retry_after_s=retry_after_s)

    @property
    def expected_s(self) -> float:
        """Estimated seconds from when the request was sent until Triton ends it; 0 if nothing is known."""
        return 0.0 if self._slots is None else self._slots.expected_s(self._cost, ahead=self._ahead)

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
        if self._is_released and not self._kept and self._slots is not None:
            if self.at_end is not None:
                self.at_end()
            self._release_slot(self._slots, self._admission.now_s())

    def forsake(self) -> None:
        """End each `keep` so far, ahead of its `let_go`: the server was silent, and the request is sent to another one.
        Its slot is that of the other send now, and the other send's time is its own."""
        self._forsaken, self._kept = self._forsaken + self._kept, 0

    def _release_slot(self, slots: ConcurrencyLimiter, now_s: float) -> None:
        sent_s, tenant = self._sent_s, self._account.tenant.name
        # By position: Python 3.11 calls by names take the slow way.
        slots.release(tenant, self._cost, now_s - sent_s, self._ahead, self._deadline_s - sent_s, self._has_left, self._ticket, now_s)
        self._admission.forget_if_idle(self._model, self.continues_sequence)

    async def _wait(self, slots: ConcurrencyLimiter, model: str, cost: float, deadline_s: float) -> None:
        """Wait for a slot in the fair queue. Raises Overloaded, LimitExceeded."""
        tenant = self._account.tenant
        place = self.enter_room(slots.retry_after_s)
        lane = lane_of(deadline_s - self._admission.now_s())
        ticket = self._ticket = Ticket(tenant=tenant.name, weight=tenant.weight, priority=self.priority, cost=cost, lane=lane)
        self.is_waiting = True
        try:
            reason = await slots.acquire(ticket, deadline_s)
        finally:
            self.is_waiting = False
            place.leave()
        if reason is not None:
            raise self._admission.overloaded(tenant.name, reason, model, slots.retry_after_s)
