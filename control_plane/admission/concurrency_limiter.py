"""Concurrency limit of one model: its slots at Triton, and the fair queue of the requests that wait for one.

The queue is work-conserving: a request waits only while all slots are taken, and each slot that comes free
goes to the next at once. A tenant that uses the model alone has many slots, which fill batches. While several
use it there are only as many as it needs for its throughput (`admission/domain/adaptive_limit`), since
requests that were sent to Triton cannot be overtaken. A tenant within its share need not even wait for a
slot: its requests go on at once, beyond the limit.

A slot is taken until Triton has ended the request, whenever its caller left: what Triton has is what the next
one waits for. Once answers have taken so long that deadlines are in danger, or many callers have left, a request is
sent only if it can be answered in time behind the work that Triton has; what waits is asked again when its
turn comes. Then Triton gets no more than keeps it busy, too: who leaves while he waits here costs nothing. Callers
that have time-outs of their own do not tell them: their time is what `admission/domain/caller_patience` has learned.

`admission/model_slots` has one for each model. This module knows tenants by name only, and no requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from control_plane.admission.domain.adaptive_limit import AdaptiveLimit
from control_plane.admission.domain.caller_patience import CallerPatience
from control_plane.admission.domain.deadline import ServiceTime, can_be_met
from control_plane.admission.domain.fair_queue import FairQueue, QueueLimits, Ticket
from control_plane.admission.domain.leaving import LeavingCallers
from control_plane.concurrency.waiter_queue import Waiter
from control_plane.telemetry.shed_reason import ShedReason

# Bounds of Retry-After for a refused request: a sooner retry would meet the same queue, and no client plans
# for a later one.
_SOONEST_RETRY_S, _LATEST_RETRY_S = 1.0, 60.0

# A model counts as shared for this long after a request of another tenant than the last. A tenant that asks
# only every few seconds must not find the model full of another's requests each time.
_SHARED_FOR_S = 10.0

# Limit on slots taken, as a multiple of the number there is, when tenants within their share go beyond that
# number.
_MAX_TAKEN = 2

# Deadlines are in danger once an answer has taken this part of its request's time, and for so long after the
# last, or after a request that could not be met. Until then a free slot is taken unasked: an estimate cannot refuse
# what a model does easily.
_DANGER, _DANGER_S = 0.5, 10.0

# Weight of the newest pause between two slots that came free.
_NEWEST = 0.1

_NO_DEADLINE_S = float("inf")


@dataclass(frozen=True, slots=True)
class SlotLimits:
    """Bounds on a model's slots."""

    alone: int
    """Slots while one tenant uses the model."""
    shared: int
    """Most slots while several tenants do."""


class HeldSlot(Protocol):
    """Slot that a request holds, with what the limiter learns from at its end (`admission/permit`)."""

    cost: float
    ahead: float
    """Work that Triton had before the request when it got its slot."""
    sent_s: float
    """When the request was sent to Triton, in the loop's time; infinity if Triton never had it."""
    deadline_s: float
    """The request's deadline, or when its caller left."""
    has_left: bool
    """Whether its caller left before the deadline."""
    ticket: Ticket | None
    """Its ticket of the fair queue; None if it had not to wait."""


class _Waiter(Waiter[ShedReason | None]):
    """Request that waits for a slot; its grant is None with a slot, or why the request was shed."""

    __slots__ = ("deadline_s", "ticket")

    def __init__(self, ticket: Ticket, deadline_s: float) -> None:
        super().__init__()
        self.ticket = ticket
        self.deadline_s = deadline_s


class ConcurrencyLimiter:
    """Semaphore of one model whose waiters are served in fair order and shed when they cannot meet their
    deadline.
    """

    def __init__(self, slots: SlotLimits, limits: QueueLimits, now_s: Callable[[], float]) -> None:
        """`now_s` is the event loop's clock."""
        self._alone = slots.alone
        self._shared = AdaptiveLimit(slots.shared)
        self._last_tenant: str | None = None
        self._shared_until_s = float("-inf")
        self._taken = 0
        self.work = 0.0
        """Cost of the requests that hold a slot."""
        self._held: dict[str, int] = {}
        """Slots held, by tenant; only tenants that hold any."""
        self._queue: FairQueue[_Waiter] = FairQueue(limits)
        self._waiting = self._queue.waiting
        """What waits in the queue: looked at by each request, without a call."""
        self._service = ServiceTime()
        self._leaving = LeavingCallers()
        self._patience = CallerPatience()
        self._in_danger_until_s = float("-inf")
        self._urgent_s, self._urgent_until_s = _NO_DEADLINE_S, float("-inf")
        """Least time that a request had which came while slots were scarce, and until when it counts."""
        self._now_s = now_s
        self._silent_since_s = float("-inf")
        """When a slot was last given back, or the first was taken since then: for so long nothing has ended."""
        self._pause_s = 0.0
        """Mean time from one slot that came free to the next, while requests waited; 0 if none has."""

    @property
    def are_idle(self) -> bool:
        return not self._taken

    @property
    def is_known(self) -> bool:
        """Whether it was measured what requests take."""
        return self._service.is_known

    @property
    def is_strained(self) -> bool:
        """Whether requests wait here, or deadlines are in danger, or nothing is known yet of what takes its slots."""
        return bool(self._waiting) or self._is_in_danger() or (self._taken > 0 and not self.is_known)

    @property
    def fullness(self) -> float:
        """Part of the slots that are taken."""
        return self._taken / self._alone

    @property
    def left_s(self) -> float:
        """Estimated seconds until Triton has done what it has of this model."""
        return self._service.left_s(at_triton=self.work)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def retry_after_s(self) -> float:
        """Estimated seconds until all that waits or is at Triton now is done, within the bounds of
        Retry-After.

        Where nothing is known of what requests take, as of those whose length is their callers' choice, it is the time until the
        next slot comes free behind all that waits.
        """
        if self._service.is_known:
            needed_s = self._service.drained_s(self._queue.cost, at_triton=self.work) + self._service.left_s(at_triton=self.work)
        else:
            silent_s = self._now_s() - self._silent_since_s if self._taken else 0.0
            needed_s = (len(self._queue) + 1) * max(self._pause_s, silent_s) if self._pause_s else silent_s
        return min(max(needed_s, _SOONEST_RETRY_S), _LATEST_RETRY_S)

    def try_acquire(self, tenant: str, cost: float = 1.0, deadline_s: float = _NO_DEADLINE_S, now_s: float | None = None) -> bool:
        """Take a free slot without waiting; False if there is none, or if the answer would come too late.
        While requests wait there is none: they are first. `now_s` is the loop's time, if the caller has just read it.
        """
        now_s = self._now_s() if now_s is None else now_s
        if tenant != self._last_tenant:
            if self._last_tenant is not None:
                self._shared_until_s = now_s + _SHARED_FOR_S
            self._last_tenant = tenant
        if self._waiting or self._taken >= (self._shared.slots if now_s < self._shared_until_s else self._alone):
            return False
        # Asked inline, as most requests come while no deadline is in danger: `_has_enough` and `_may_send` in one.
        if self._taken and now_s < self._in_danger_until_s:
            if self._service.has_enough(self.work, self._urgent_s):
                return False
            if not can_be_met(deadline_s, now_s=now_s, needed_s=self._service.answer_s(cost, ahead=self.work)):
                return False
        if not self._taken:
            self._silent_since_s = now_s
        self._taken += 1  # `_hold`, without a call
        self.work += cost
        self._held[tenant] = self._held.get(tenant, 0) + 1
        return True

    def would_refuse(self, ticket: Ticket, deadline_s: float) -> bool:
        """Whether a request that comes now would be refused at once as too late; this changes nothing."""
        now_s = self._now_s()
        if not self._has_enough() and self._may_send(ticket.cost, deadline_s, now_s):
            if not self._waiting and self._taken < self._limit_at(now_s):
                return False
            is_below_share = self._is_shared() and self._is_below_share(ticket.tenant)
            if is_below_share and (not self._queue or self._queue.may_bypass(ticket, self._shared.slots)):
                return False
        return self._is_too_late(ticket, deadline_s, now_s)

    async def acquire(self, ticket: Ticket, deadline_s: float) -> ShedReason | None:
        """Wait for a slot until the loop's time `deadline_s` at most. Return None with a slot, or why the
        request was shed.

        A request that is cancelled or shed holds no slot afterwards.
        """
        now_s = self._now_s()
        self._note_urgency(ticket, deadline_s, now_s)
        if self._may_exceed_limit(ticket, deadline_s):
            self._hold(ticket.tenant, ticket.cost)
            return None
        if self._is_too_late(ticket, deadline_s, now_s):
            # Or the danger would seem over where nothing ends for as long, and all who come then would be sent.
            self._in_danger_until_s = now_s + _DANGER_S
            return ShedReason.DEADLINE
        waiter = _Waiter(ticket, deadline_s)
        # A full queue refuses the newest request of the tenant with the longest queue, which may be this one
        # or another.
        refused = self._queue.push(waiter, ticket)
        if refused is not None:
            refused.grant(ShedReason.QUEUE_FULL)
        try:
            return await waiter.wait(deadline_s, leave=partial(self._queue.remove, waiter), give_back=partial(self._give_back, ticket))
        except TimeoutError:
            return ShedReason.DEADLINE
        except asyncio.CancelledError:
            now_s = self._now_s()
            self._patience.left(ticket.kind, now_s - ticket.came_s, now_s)
            raise

    def release(self, tenant: str, slot: HeldSlot, now_s: float) -> None:
        """Give a tenant's slot back, learn from how the request ended, and hand the slot to the next in the queue. `now_s` is the
        loop's time."""
        somebody_waits, cost, held_s = bool(self._waiting), slot.cost, now_s - slot.sent_s
        if held_s > 0.0:
            self._service.record(cost, held_s, ahead=slot.ahead, now_s=now_s)
            self._leaving.ended(cost, has_left=slot.has_left)
            if slot.ticket is not None:
                self._ended_after_wait(slot.ticket, slot, now_s)
            # As long as somebody waits it goes on: whatever waits would be sent at once when it was over.
            is_late = held_s > _DANGER * (slot.deadline_s - slot.sent_s) and (not slot.has_left or self._leaving.are_many)
            if is_late or (somebody_waits and self._is_in_danger()):
                self._in_danger_until_s = now_s + _DANGER_S
        # The limit learns only while slots are scarce: requests wait, or would wait if they had not been let
        # beyond the limit.
        if (somebody_waits or self._taken > self._shared.slots) and self._is_shared():
            self._shared.ended(cost, now_s)
        elif self._shared.is_busy:
            self._shared.interrupt(now_s)
        if somebody_waits:
            pause_s = now_s - self._silent_since_s
            self._pause_s = self._pause_s + _NEWEST * (pause_s - self._pause_s) if self._pause_s else pause_s
        self._silent_since_s = now_s
        self._let_go(tenant, cost)
        if somebody_waits:
            self._hand_on()

    def expected_s(self, cost: float, *, ahead: float) -> float:
        """Estimate the seconds that Triton takes for a request behind work of `ahead` units; 0 if nothing was
        measured yet.
        """
        return self._service.answer_s(cost, ahead=ahead) or 0.0

    def answer_s(self, cost: float) -> float:
        """Estimate the seconds from now until the answer of a request that comes now, behind all that is here; 0 if nothing was
        measured yet, or all of that is in doubt. It is at least as long as the model has ended nothing that it has."""
        now_s = self._now_s()
        silent_s = now_s - self._silent_since_s if self._taken else 0.0
        if self._service.is_in_doubt(now_s):
            return 0.0
        if self._waiting or self._taken >= self._limit_at(now_s):
            needed_s = self._service.queued_answer_s(cost, queued=self._queue.cost, at_triton=self.work)
        else:
            needed_s = self._service.answer_s(cost, ahead=self.work)
        return max(needed_s, silent_s) if needed_s else 0.0

    def _stays_until_s(self, ticket: Ticket, deadline_s: float, now_s: float) -> float:
        """Until when a request is worth computing: its deadline, or sooner if callers like its own will have left by then. Who
        is still there after that time is one of those who stay."""
        leaves_s = ticket.came_s + self._patience.stays_s(ticket.kind, now_s)
        return leaves_s if now_s < leaves_s < deadline_s else deadline_s

    def _ended_after_wait(self, ticket: Ticket, slot: HeldSlot, now_s: float) -> None:
        """Note how long the caller stayed of a request that has ended, and had waited for its slot by this ticket."""
        after_s = min(now_s, slot.deadline_s) - ticket.came_s
        self._queue.ended(ticket, has_left=slot.has_left)
        if slot.has_left:
            self._patience.left(ticket.kind, after_s, now_s)
        else:
            self._patience.stayed(ticket.kind, after_s)

    def _note_urgency(self, ticket: Ticket, deadline_s: float, now_s: float) -> None:
        """Note how much time a request has, unless even an idle model would answer it too late: then it gains nothing by
        what others may not send, and a tenant could hold all others back by deadlines that are not meant.
        """
        if (deadline_s - now_s <= self._urgent_s or now_s >= self._urgent_until_s) and can_be_met(
            deadline_s, now_s=now_s, needed_s=self._service.answer_s(ticket.cost, ahead=0.0)
        ):
            self._urgent_s, self._urgent_until_s = deadline_s - now_s, now_s + _DANGER_S

    def _is_in_danger(self) -> bool:
        return self._now_s() < self._in_danger_until_s

    def _has_enough(self) -> bool:
        """Whether deadlines are in danger and Triton has all the work that keeps it busy."""
        return self._taken > 0 and self._is_in_danger() and self._service.has_enough(self.work, self._urgent_s)

    def _is_shared(self) -> bool:
        return self._now_s() < self._shared_until_s

    def _limit_at(self, now_s: float) -> int:
        return self._shared.slots if now_s < self._shared_until_s else self._alone

    def _may_send(self, cost: float, deadline_s: float, now_s: float) -> bool:
        """Whether a request may be sent now. To an idle model it may: so a wrong estimate is soon put right."""
        if not self._taken or now_s >= self._in_danger_until_s:
            return True
        return self._can_be_met(deadline_s, now_s, self._service.answer_s(cost, ahead=self.work))

    def _can_be_met(self, deadline_s: float, now_s: float, needed_s: float | None) -> bool:
        """Whether a request can be answered in time, or nothing that was measured says that it cannot."""
        return self._service.is_in_doubt(now_s) or can_be_met(deadline_s, now_s=now_s, needed_s=needed_s)

    def _is_too_late(self, ticket: Ticket, deadline_s: float, now_s: float) -> bool:
        """Whether a request that comes now, and would have to wait, would be answered too late."""
        needed_s = self._service.queued_answer_s(ticket.cost, queued=self._queue.ahead(ticket), at_triton=self.work)
        return not self._can_be_met(self._stays_until_s(ticket, deadline_s, now_s), now_s, needed_s)

    def _is_below_share(self, tenant: str) -> bool:
        """Whether a tenant holds less than an equal share of the slots, and there is room beyond the limit."""
        slots, held = self._shared.slots, self._held.get(tenant, 0)
        holders = len(self._held) + (held == 0)
        return held * holders < slots and self._taken < min(_MAX_TAKEN * slots, self._alone)

    def _may_exceed_limit(self, ticket: Ticket, deadline_s: float) -> bool:
        """Whether a request may go on beyond the limit: its tenant holds less than an equal share of the
        slots, and no waiting request has a better claim.
        """
        if not self._is_shared() or not self._is_below_share(ticket.tenant):
            return False
        if self._has_enough() or not self._may_send(ticket.cost, deadline_s, self._now_s()):
            return False
        return not self._queue or self._queue.bypass(ticket, self._shared.slots)

    def _hold(self, tenant: str, cost: float) -> None:
        if not self._taken:
            self._silent_since_s = self._now_s()
        self._taken += 1
        self.work += cost
        self._held[tenant] = self._held.get(tenant, 0) + 1

    def _let_go(self, tenant: str, cost: float) -> None:
        self._taken -= 1
        self.work = self.work - cost if self._taken else 0.0  # exactly, without the rounding errors of the sum
        held = self._held[tenant] - 1
        if held:
            self._held[tenant] = held
        else:
            del self._held[tenant]

    def _hand_on(self) -> None:
        """Hand free slots to the queue: the one just given back, and others if the limit grew; none while
        more are taken than it, or Triton has enough. What would be answered too late by now is shed instead.

        One at most is shed at a time, and to an idle model the next is sent in any case: so a wrong estimate is
        soon put right.
        """
        is_shed = False
        while self._queue and self._taken < self._limit_at(self._now_s()) and not self._has_enough() and not (is_shed and self._taken):
            waiter = self._queue.pop()
            ticket = waiter.ticket
            # Without caution: it had its share of that when it came, and has waited since.
            needed_s, now_s = self._service.answer_s(ticket.cost, ahead=self.work, caution=1.0), self._now_s()
            is_in_time = is_shed or self._can_be_met(self._stays_until_s(ticket, waiter.deadline_s, now_s), now_s, needed_s)
            is_shed = not is_in_time
            reason = None if is_in_time else ShedReason.DEADLINE
            if waiter.grant(reason) and reason is None:
                self._hold(ticket.tenant, ticket.cost)

    def _give_back(self, ticket: Ticket, reason: ShedReason | None) -> None:
        """Take back the slot of a request that left in the turn of the event loop in which it was given one."""
        if reason is None:
            self._let_go(ticket.tenant, ticket.cost)
            self._hand_on()
