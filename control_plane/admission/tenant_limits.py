"""Enforcement of tenants' limits in this process: rate, concurrency and daily quota. Called by
`admission/admission`.

Rates hold over all processes together (`admission/rate_leases`). Of concurrency limits and daily quotas this
process enforces the share that `set_shares` tells (`admission/domain/shares`).
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Protocol

from control_plane.admission.domain.daily_quota import DAY_S, day_number, number_of_day, quota_wait_s
from control_plane.admission.domain.rate_lease import TokenLease
from control_plane.admission.domain.rate_limit import Fields, RateDecision, RateState, limit_fields, part_of_limit
from control_plane.admission.rate_leases import Answer, RateLeases, Undecided
from control_plane.core.errors import LimitExceeded
from control_plane.objects.domain.tenant import Tenant
from control_plane.telemetry.shed_reason import ShedReason

ShedCounts = Counter[tuple[str, ShedReason]]

# Retry-After for a concurrency limit. Nobody knows when one of the tenant's requests ends: this is the least
# that the field can say.
_CONCURRENCY_RETRY_S = 1.0


class TenantSource(Protocol):
    """Lookup of tenants that have limits; implemented by the object mirror."""

    @property
    def tenants(self) -> Mapping[str, Tenant]:
        """Tenants by name; read for each request, so it must be cheap."""


class TenantAccount:
    """Account of one tenant in this process: what it uses, and the limits it is held against."""

    __slots__ = (
        "as_of",
        "asked",
        "concurrency",
        "in_flight",
        "is_limited",
        "known",
        "lease",
        "own_rate",
        "rate",
        "share",
        "tenant",
        "units_ended",
        "units_in_flight",
        "waiting",
        "whole_rate",
    )

    def __init__(self, name: str) -> None:
        self.tenant = Tenant(name)
        self.as_of = 0
        """Number of the shares that its limits were last held against."""
        self.asked = 0
        self.in_flight = 0
        self.units_in_flight = 0.0
        self.units_ended = 0.0
        """Compute units of requests that ended since the stored sums came; those sums include all that ended
        before.
        """
        self.rate = RateState()
        self.lease = TokenLease()
        self.waiting: deque[asyncio.Future[Answer]] = deque()
        self.set_limits(None, 1.0)

    @property
    def name(self) -> str:
        return self.tenant.name

    def set_limits(self, known: Tenant | None, share: float) -> None:
        """Take on the tenant's limits, None for one without any, and this process's share of them."""
        tenant = known or Tenant(self.tenant.name)
        self.known, self.tenant, self.share = known, tenant, share
        rate, concurrency = tenant.requests_per_s, tenant.concurrency
        self.whole_rate = None if rate is None else part_of_limit(rate, tenant.burst, share=1.0)
        self.own_rate = None if rate is None else part_of_limit(rate, tenant.burst, share=share)
        # At least one at a time in each process, but for a tenant that may have none.
        self.concurrency = None if concurrency is None else min(concurrency, max(1, int(concurrency * share)))
        self.is_limited = rate is not None or concurrency is not None or tenant.daily_compute_units is not None


class TenantLimits:
    """Limits of all tenants in this process, with an account for each tenant that has sent requests."""

    def __init__(self, known: TenantSource, sheds: ShedCounts, *, leases: RateLeases, today_s: Callable[[], float]) -> None:
        """Refusals are counted in `sheds`; `today_s` is the wall clock in seconds since 1970."""
        self._known = known
        self._sheds = sheds
        self._leases = leases
        self._today_s = today_s
        self._accounts: dict[str, TenantAccount] = {}
        self._shares: Mapping[str, float] = {}
        self._other_share = 1.0
        self._as_of = 0
        """Number of the shares that hold now."""
        self._day, self._day_ends_s = 0, DAY_S
        self._stored: Mapping[str, float] = {}

    def account(self, name: str) -> TenantAccount:
        """Return the tenant's account with the limits that hold now; an unknown tenant has no limits."""
        tenant = self._known.tenants.get(name)
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = TenantAccount(name)
        elif account.known is tenant and account.as_of == self._as_of:
            return account
        self._hold_against(account, tenant)
        return account

    def _hold_against(self, account: TenantAccount, known: Tenant | None) -> None:
        """Hold an account against the tenant's limits and the share that holds now."""
        account.as_of = self._as_of
        share = self._shares.get(account.name, self._other_share)
        if account.known is not known or account.share != share:
            account.set_limits(known, share)

    def check(self, account: TenantAccount) -> Undecided | None:
        """Check a request against all limits: None admits it, `Undecided` leaves it to `ask`. Raises
        LimitExceeded.

        Only a request that passes the other limits uses a token of the rate.
        """
        if account.as_of != self._as_of:  # one that is held for long, as by the verbatim cache
            self._hold_against(account, account.known)
        # Also of one that is refused: shares follow what tenants ask for.
        account.asked += 1
        self._check_quota(account)  # the limit that lasts longest is reported first
        self._check_concurrency(account)
        if account.whole_rate is None:
            return None
        answer = self._leases.decide(account)
        if answer is None:
            return None
        if isinstance(answer, Undecided):
            account.asked -= 1  # `ask` counts it
            return answer
        raise self._refuse_rate(account, answer)

    async def ask(self, account: TenantAccount) -> None:
        """Wait for the shared bucket's decision on a request that `check` left undecided. Raises
        LimitExceeded.
        """
        account.asked += 1
        refusal = await self._leases.ask(account)
        if refusal is not None:
            raise self._refuse_rate(account, refusal)

    def precheck(self, account: TenantAccount) -> None:
        """Raise LimitExceeded where `check` would now, using no token; only a refused request counts as
        demand.
        """
        try:
            self._check_quota(account)
            self._check_concurrency(account)
            if account.whole_rate is not None and (refusal := self._leases.peek(account)) is not None:
                raise self._refuse_rate(account, refusal)
        except LimitExceeded:
            account.asked += 1
            raise

    def set_shares(self, shares: Mapping[str, float], *, other: float) -> None:
        # Each account takes its share over when its next request is checked: of 10,000 active tenants all have another one each
        # second, and all their limits at once took 20 ms.
        self._shares, self._other_share = shares, other
        self._as_of += 1

    def set_spent(self, day: str, units: Mapping[str, float]) -> None:
        number = number_of_day(day)
        # Sums of yesterday may still arrive after midnight, when this process counts the new day already. One that the clock
        # has not reached is not counted on: the clock was put back.
        if number >= min(self._day, day_number(self._today_s())):
            self._begin(number, units)
        self._forget_unknown()

    def drain_demand(self) -> dict[str, int]:
        demand = {name: account.asked for name, account in self._accounts.items() if account.asked}
        for account in self._accounts.values():
            account.asked = 0
        return demand

    def _forget_unknown(self) -> None:
        """Drop idle accounts of unknown tenants: bearer tokens may name any number of tenants, so they must
        not pile up.
        """
        known = self._known.tenants
        self._accounts = {name: account for name, account in self._accounts.items() if account.in_flight or name in known}

    def _begin(self, day: int, stored: Mapping[str, float]) -> None:
        """Count from the stored sums of a day on."""
        self._day, self._day_ends_s, self._stored = day, (day + 1) * DAY_S, stored
        for account in self._accounts.values():
            account.units_ended = 0.0

    def _check_quota(self, account: TenantAccount) -> None:
        """Raise LimitExceeded if the tenant has used up its compute units of today."""
        quota = account.tenant.daily_compute_units
        if quota is None:
            return
        now_s = self._today_s()
        if now_s >= self._day_ends_s:
            self._begin(day_number(now_s), {})
        stored, own = self._stored.get(account.tenant.name, 0.0), account.units_in_flight + account.units_ended
        wait_s = quota_wait_s(quota, stored=stored, own=own, share=account.share, now_s=now_s)
        if wait_s is not None:
            fields = limit_fields(limit=quota, remaining=0, reset_s=DAY_S - now_s % DAY_S)
            raise self._refuse(account, ShedReason.QUOTA, f"has used its {quota:g} compute units of today (UTC)", wait_s, fields)

    def _check_concurrency(self, account: TenantAccount) -> None:
        limit = account.concurrency
        if limit is not None and account.in_flight >= limit:
            fields = limit_fields(limit=account.tenant.concurrency or 0, remaining=0, reset_s=_CONCURRENCY_RETRY_S)
            text = f"may have {account.tenant.concurrency} requests under way at a time"
            raise self._refuse(account, ShedReason.CONCURRENCY, text, _CONCURRENCY_RETRY_S, fields)

    def _refuse_rate(self, account: TenantAccount, decision: RateDecision) -> LimitExceeded:
        tenant, whole = account.tenant, account.whole_rate
        assert whole is not None, "it has no rate"
        fields = limit_fields(limit=whole.burst, remaining=0, reset_s=decision.reset_s)
        at_once = "" if tenant.burst is None else f", {whole.burst:g} at once"
        text = f"may send {tenant.requests_per_s:g} requests per second{at_once}"
        return self._refuse(account, ShedReason.RATE, text, decision.retry_after_s, fields)

    def _refuse(self, account: TenantAccount, reason: ShedReason, text: str, retry_after_s: float, fields: Fields) -> LimitExceeded:
        self._sheds[account.tenant.name, reason] += 1
        return LimitExceeded(f"tenant {account.tenant.name!r} {text}", retry_after_s=retry_after_s, limits=fields)
