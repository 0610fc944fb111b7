"""Whether a request may go on now: its tenant's limits on its head, then its turn at the model.

A door calls `enter` before it reads a body and `turn` before it sends to Triton; the permit is released in any case.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from control_plane.admission.concurrency_slots import ModelSlots, SlotLimits
from control_plane.admission.domain.fair_queue import Claim, QueueLimits
from control_plane.admission.rate_leases import RateLeases, Undecided
from control_plane.admission.tenant_limits import Account, KnownTenants, Sheds, TenantLimits
from control_plane.core.errors import Overloaded
from control_plane.telemetry.shed_reason import ShedReason

# A request counts as this many compute units at least, or those of no known cost would take any number of turns.
_LEAST_COST = 1e-3

# Models that nobody asks for are remembered, with their pace, up to this number: anybody may ask for any name.
_MOST_IDLE_MODELS = 1024

_WHY = {
    ShedReason.QUEUE_FULL: "too many requests wait for model {model!r}; try again later",
    ShedReason.DEADLINE: "model {model!r} is too busy to answer before the request's deadline; try again later or give it more time",
}


class Admission:
    """Admits the requests of one process."""

    def __init__(
        self,
        known: KnownTenants,
        *,
        slots: SlotLimits,
        queue: QueueLimits,
        now_s: Callable[[], float] = time.monotonic,
        today_s: Callable[[], float] = time.time,
        leases: RateLeases | None = None,
    ) -> None:
        """`now_s` is the loop's time, `today_s` seconds since 1970. Without `leases` this is the only process."""
        self.now_s = now_s
        self._slots = slots
        self._queue = queue
        self._sheds: Sheds = Sheds()
        self._leases = leases or RateLeases(now_s=now_s)
        self._limits = TenantLimits(known, self._sheds, leases=self._leases, today_s=today_s)
        self._models: dict[str, ModelSlots] = {}

    @property
    def counts(self) -> Mapping[tuple[str, ShedReason], int]:
        """Requests turned away since the process began, by tenant and reason."""
        return self._sheds

    def enter(self, tenant: str) -> Permit | None:
        """Admit a request on its head; None: its tenant is near its rate, so `enter_when_told`. Raises LimitExceeded."""
        account = self._limits.account(tenant)
        if account.is_limited and isinstance(self._limits.check(account), Undecided):
            return None
        account.in_flight += 1
        return Permit(self, account)

    async def enter_when_told(self, tenant: str) -> Permit:
        """The same where only what all processes have let in decides. Raises LimitExceeded."""
        account = self._limits.account(tenant)
        account.in_flight += 1
        try:
            await self._limits.ask(account)
        except BaseException:
            account.in_flight -= 1
            raise
        return Permit(self, account)

    def let_by(self, tenant: str) -> bool:
        """Count a request that is over as it comes; False: it has to `enter_when_told`. Raises LimitExceeded."""
        account = self._limits.account(tenant)
        return not (account.is_limited and isinstance(self._limits.check(account), Undecided))

    def account(self, tenant: str) -> Account:
        """With the limits that hold now, and any other as long as nothing that is known changes."""
        return self._limits.account(tenant)

    def look(self, tenant: str) -> None:
        """Raises LimitExceeded where `enter` would now; for a request whose body is still to come."""
        account = self._limits.account(tenant)
        if account.is_limited:
            self._limits.look(account)

    def set_shares(self, shares: Mapping[str, float], *, other: float = 1.0, processes: int = 1) -> None:
        """Enforce these parts of the tenants' limits, above 0 and at most 1, and `other` of all that are not named.

        So many processes share them, this one included.
        """
        self._leases.processes = processes
        self._limits.set_shares(shares, other=other)

    def set_spent(self, day: str, units: Mapping[str, float]) -> None:
        """The stored sums of a day (ISO 8601, UTC) by tenant, all processes' together; of a day that is over they are ignored.

        To be told every few seconds: what this process lets through is counted from one time to the next.
        """
        self._limits.set_spent(day, units)

    def take_demand(self) -> dict[str, int]:
        """Requests since the last call, admitted or not, by tenant that has limits: what `admission/domain/shares` shares by."""
        return self._limits.take_demand()

    def slots(self, model: str) -> ModelSlots:
        """Those of one model."""
        slots = self._models.get(model)
        if slots is None:
            slots = self._models[model] = ModelSlots(self._slots, self._queue, self.now_s)
        return slots

    def forget_if_idle(self, model: str) -> None:
        """Keep the number of idle models bounded; called when a request of one has ended."""
        if len(self._models) > _MOST_IDLE_MODELS and self._models[model].are_idle:
            del self._models[model]

    def overloaded(self, tenant: str, reason: ShedReason, model: str) -> Overloaded:
        """Count a request that a busy model turns away, and say so."""
        self._sheds[tenant, reason] += 1
        return Overloaded(_WHY[reason].format(model=model), retry_after_s=self.slots(model).retry_after_s)


class Permit:
    """One request that was admitted; released once."""

    __slots__ = ("_account", "_admission", "_cost", "_is_released", "_model", "_slots", "_started_s", "is_waiting")

    def __init__(self, admission: Admission, account: Account) -> None:
        self._admission = admission
        self._account = account
        self._slots: ModelSlots | None = None
        self._is_released = False
        self.is_waiting = False
        """Whether its turn at a busy model has not come yet."""

    @property
    def priority(self) -> int:
        """Its tenant's."""
        return self._account.tenant.priority

    async def turn(self, model: str, *, cost_units: float, deadline_s: float) -> None:
        """Return when a request of so many compute units may go to Triton; once. Cancelled it holds no slot.

        Raises Overloaded: it would not be answered before the loop's time `deadline_s`, or too many wait.
        """
        assert self._slots is None, "a permit is for one turn"
        assert not self._is_released, "the permit was released before"
        cost = cost_units if cost_units > _LEAST_COST else _LEAST_COST
        slots = self._admission.slots(model)
        if not slots.take_at_once(self._account.tenant.name):
            await self._wait(slots, model, cost, deadline_s)
        self._slots, self._model, self._cost = slots, model, cost
        self._account.units_in_flight += cost
        self._started_s = self._admission.now_s()

    def release(self) -> None:
        """Give back what it holds; the request has ended, however it did."""
        assert not self._is_released, "the permit was released before"
        self._is_released = True
        account = self._account
        account.in_flight -= 1
        if self._slots is not None:
            account.units_in_flight -= self._cost
            account.units_ended += self._cost
            self._slots.give(account.tenant.name, cost=self._cost, held_s=self._admission.now_s() - self._started_s)
            self._admission.forget_if_idle(self._model)

    async def _wait(self, slots: ModelSlots, model: str, cost: float, deadline_s: float) -> None:
        tenant = self._account.tenant
        claim = Claim(tenant=tenant.name, weight=tenant.weight, priority=tenant.priority, cost=cost)
        self.is_waiting = True
        try:
            reason = await slots.take(claim, deadline_s)
        finally:
            self.is_waiting = False
        if reason is not None:
            raise self._admission.overloaded(tenant.name, reason, model)
