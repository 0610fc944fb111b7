"""Concurrency limit of one model: its slots at Triton, and the fair queue of the requests that wait for one.

The queue is work-conserving: a request waits only while all slots are taken, and each slot that comes free
goes to the next at once. A tenant that uses the model alone has many slots, which fill batches. While several
use it there are only as many as it needs for its throughput (`admission/domain/adaptive_limit`), since requests
that were sent to Triton cannot be overtaken. A tenant within its share need not even wait for a slot: its
requests go on at once, beyond the limit.

`admission/admission` has one for each model. This module knows tenants by name only, and no requests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from control_plane.admission.domain.adaptive_limit import AdaptiveLimit
from control_plane.admission.domain.deadline import ServiceRate, can_be_met, time_needed_s
from control_plane.admission.domain.fair_queue import FairQueue, QueueLimits, Ticket
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


@dataclass(frozen=True, slots=True)
class SlotLimits:
    """Bounds on a model's slots."""

    alone: int
    """Slots while one tenant uses the model."""
    shared: int
    """Most slots while several tenants do."""


class _Waiter(Waiter[ShedReason | None]):
    """Request that waits for a slot; its grant is None with a slot, or why the request was shed."""

    __slots__ = ("tenant",)

    def __init__(self, tenant: str) -> None:
        super().__init__()
        self.tenant = tenant


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
        self._held: dict[str, int] = {}
        """Slots held, by tenant; only tenants that hold any."""
        self._queue: FairQueue[_Waiter] = FairQueue(limits)
        self._pace = ServiceRate()
        self._now_s = now_s

    @property
    def are_idle(self) -> bool:
        return not self._taken

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def retry_after_s(self) -> float:
        """Estimated seconds until all that waits now is done, within the bounds of Retry-After."""
        needed_s = time_needed_s(self._pace, ahead=self._queue.cost, cost=0.0, slots=self._most_taken()) or 0.0
        return min(max(needed_s, _SOONEST_RETRY_S), _LATEST_RETRY_S)

    def try_acquire(self, tenant: str) -> bool:
        """Take a free slot without waiting; False if there is none. While requests wait there is none: they
        are first.
        """
        if tenant != self._last_tenant:
            if self._last_tenant is not None:
                self._shared_until_s = self._now_s() + _SHARED_FOR_S
            self._last_tenant = tenant
        if self._queue or self._taken >= self._count():
            return False
        self._hold(tenant)
        return True

    async def acquire(self, claim: Ticket, deadline_s: float) -> ShedReason | None:
        """Wait for a slot until the loop's time `deadline_s` at most. Return None with a slot, or why the
        request was shed.

        A request that is cancelled or shed holds no slot afterwards.
        """
        if self._may_exceed_limit(claim):
            self._hold(claim.tenant)
            return None
        needed_s = time_needed_s(self._pace, ahead=self._queue.ahead(claim), cost=claim.cost, slots=self._most_taken())
        if not can_be_met(deadline_s, now_s=self._now_s(), needed_s=needed_s):
            return ShedReason.DEADLINE
        waiter = _Waiter(claim.tenant)
        # A full queue refuses the newest request of the tenant with the longest queue, which may be this one
        # or another.
        refused = self._queue.push(waiter, claim)
        if refused is not None:
            refused.grant(ShedReason.QUEUE_FULL)
        try:
            return await waiter.wait(
                deadline_s, leave=partial(self._queue.remove, waiter), give_back=partial(self._give_back, claim.tenant)
            )
        except TimeoutError:
            return ShedReason.DEADLINE

    def release(self, tenant: str, *, cost: float, held_s: float) -> None:
        """Give a slot back that was held for `held_s` by work of `cost` units, and hand it to the next in the
        queue.
        """
        self._pace = self._pace.after(cost, held_s)
        somebody_waits = bool(self._queue)
        # The limit learns only while slots are scarce: requests wait, or would wait if they had not been let
        # beyond the limit.
        if (somebody_waits or self._taken > self._shared.slots) and self._is_shared():
            self._shared.ended(cost, self._now_s())
        elif self._shared.is_busy:
            self._shared.interrupt(self._now_s())
        self._let_go(tenant)
        if somebody_waits:
            self._hand_on()

    def _is_shared(self) -> bool:
        return self._now_s() < self._shared_until_s

    def _count(self) -> int:
        return self._shared.slots if self._now_s() < self._shared_until_s else self._alone

    def _most_taken(self) -> int:
        """Return the slots to estimate with. Just after the limit fell more are taken than there are:
        estimates favour the caller.
        """
        return max(self._count(), self._taken)

    def _may_exceed_limit(self, claim: Ticket) -> bool:
        """Whether a request may go on beyond the limit: its tenant holds less than an equal share of the
        slots, and no waiting request has a better claim.
        """
        slots, held = self._shared.slots, self._held.get(claim.tenant, 0)
        holders = len(self._held) + (held == 0)
        if not self._is_shared() or held * holders >= slots or self._taken >= min(_MAX_TAKEN * slots, self._alone):
            return False
        return not self._queue or self._queue.bypass(claim, slots)

    def _hold(self, tenant: str) -> None:
        self._taken += 1
        self._held[tenant] = self._held.get(tenant, 0) + 1

    def _let_go(self, tenant: str) -> None:
        self._taken -= 1
        held = self._held[tenant] - 1
        if held:
            self._held[tenant] = held
        else:
            del self._held[tenant]

    def _hand_on(self) -> None:
        """Hand free slots to the queue: the one just given back, and others if the limit grew; none while
        more are taken than it.
        """
        while self._queue and self._taken < self._count():
            waiter = self._queue.pop()
            if waiter.grant(None):
                self._hold(waiter.tenant)

    def _give_back(self, tenant: str, reason: ShedReason | None) -> None:
        """Take back the slot of a request that left in the turn of the event loop in which it was given one."""
        if reason is None:
            self._let_go(tenant)
            self._hand_on()
