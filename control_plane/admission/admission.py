"""Admission control: a request's tenant limits are checked on its head, and its model's concurrency limit
before it is sent.

A frontend calls `Admission.check` before it reads a body; `inference/` calls `Admission.admit` before it parses
one, and `Permit.acquire_slot` (`admission/permit`) before it sends to Triton. This module knows no protocol: an
error says how long to wait, frontends render it.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from copy import copy

from control_plane.admission.background import BackgroundGate
from control_plane.admission.concurrency_limiter import SlotLimits
from control_plane.admission.domain.fair_queue import QueueLimits
from control_plane.admission.model_slots import ModelSlots
from control_plane.admission.permit import Permit
from control_plane.admission.rate_leases import RateLeases, Undecided
from control_plane.admission.tenant_limits import ShedCounts, TenantAccount, TenantLimits, TenantSource
from control_plane.admission.waiting_room import WaitingLimits, WaitingRoom
from control_plane.telemetry.shed_reason import ShedReason

# For tests of one model, whose queue has bounds of its own.
_UNBOUNDED = WaitingLimits(requests=10**9, requests_per_tenant=10**9, size_bytes=10**15, bytes_per_tenant=10**15)


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
        servers: Callable[[], int] = lambda: 1,
    ) -> None:
        """`now_s` is the event loop's clock, `today_s` the wall clock in seconds since 1970; `servers` says how many compute
        side by side now. Requests that go on with sequences have `sequence_slots`; None: as many as others.

        Without `leases` this is the only process, and it enforces rates alone.
        """
        self.now_s = now_s
        self._sheds: ShedCounts = ShedCounts()
        self._leases = leases or RateLeases(now_s=now_s)
        self._limits = TenantLimits(known, self._sheds, leases=self._leases, today_s=today_s)
        self.slots = ModelSlots(
            slots,
            sequences=sequence_slots,
            queue=queue,
            room=WaitingRoom(waiting, self._sheds),
            background=BackgroundGate(servers, now_s),
            sheds=self._sheds,
            now_s=now_s,
        )

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
        return Permit(self.slots, account)

    async def admit_when_synced(self, tenant: str) -> Permit:
        """Admit a request after asking the token bucket of all processes. Raises LimitExceeded; cancelled it admits nothing."""
        account = self._limits.account(tenant)
        account.in_flight += 1  # before the wait: the concurrency limit counts requests that wait here too
        try:
            await self._limits.ask(account)
        except BaseException:
            account.in_flight -= 1
            raise
        return Permit(self.slots, account)

    def check_without_permit(self, account: TenantAccount) -> bool:
        """Check and count a request that is answered at once and needs no permit, such as a cache hit. Raises LimitExceeded.

        Returns False where only the shared bucket can decide: the request then has to `admit_when_synced`.
        """
        return not (account.is_limited and isinstance(self._limits.check(account), Undecided))

    def account(self, tenant: str) -> TenantAccount:
        """Return the tenant's account with the limits that hold now, until an object in the store changes."""
        return self._limits.account(tenant)

    def count_shed(self, tenant: str, reason: ShedReason, count: int = 1) -> None:
        """Count requests that were shed before they came here."""
        self._sheds[tenant, reason] += count

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

    def in_background(self, is_preempted: Callable[[str], Awaitable[bool]] | None = None) -> Admission:
        """Return this admission for work that yields to all requests; it shares limits, slots and counts with it. `is_preempted` as
        `ModelSlots.in_background` says."""
        background = copy(self)
        background.slots = self.slots.in_background(is_preempted)
        return background
