"""Tenants' rates over all processes together: each draws tokens from buckets that they share, and decides by what it has.

`admission/tenant_limits` asks for each request of a tenant with a rate. Far from the limit it is decided here; near it the request
waits for the bucket, half a millisecond mostly. While the buckets are silent nobody waits: each process enforces its part of every
rate (`admission/tenant_shares`), so all together let through about the whole.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from math import inf
from typing import Protocol

from control_plane.admission.domain import rate_lease
from control_plane.admission.domain.rate_lease import Lease, Taking
from control_plane.admission.domain.rate_limit import Drawn, RateDecision, RateLimit, RateState, admit
from control_plane.admission.ports import TokenBuckets
from control_plane.core.errors import StoreUnavailable

_log = logging.getLogger(__name__)

ANSWER_S = 0.25
"""For the buckets to answer; after it they count as silent."""
_LOOK_EVERY_S = 0.25
"""For tokens that nobody wants any more."""
_TRY_EVERY_S = 1.0
"""Whether silent buckets answer again."""


class Undecided(Enum):
    """Only the bucket knows: `RateLeases.ask`."""

    ASK = "ask"


Answer = RateDecision | Undecided | None
"""To a request: the refusal; None: it may go on."""


class RatedAccount(Protocol):
    """A tenant with a rate: `admission/tenant_limits.Account`."""

    rate: RateState
    """Of this process's own bucket."""
    lease: Lease
    waiting: deque[asyncio.Future[Answer]]
    """Requests that the bucket decides on; those that stay undecided it is silent to."""

    @property
    def name(self) -> str: ...

    @property
    def whole_rate(self) -> RateLimit | None:
        """The limit over all processes."""

    @property
    def own_rate(self) -> RateLimit | None:
        """This process's part of it."""


class RateLeases:
    """The token leases of one process, a lease for each tenant with a rate; without `buckets` it is the only one, and decides by itself."""

    def __init__(self, buckets: TokenBuckets | None = None, *, now_s: Callable[[], float] = time.monotonic) -> None:
        """`now_s` is the loop's time."""
        self.processes = 1
        """That draw from the same buckets, as far as is known."""
        self._buckets = buckets
        self._now_s = now_s
        self._is_silent = False
        self._wanted: set[RatedAccount] = set()
        self._drawing: set[RatedAccount] = set()
        self._holding: set[RatedAccount] = set()
        self._wake = asyncio.Event()

    def decide(self, account: RatedAccount) -> Answer:
        """On a request of a tenant that has a rate, which comes now."""
        whole = account.whole_rate
        assert whole is not None, "it has no rate"
        if self._buckets is None or self._is_silent or whole.requests_per_s <= 0:
            return self._alone(account)
        now_s, lease = self._now_s(), account.lease
        taking = rate_lease.take(lease, whole.requests_per_s, whole.burst, self.processes, now_s)
        if taking is Taking.TAKEN:
            if rate_lease.is_low(lease, now_s):
                self._draw_soon(account)
            return None
        return Undecided.ASK if taking is Taking.ASK else self._refusal(account, whole)

    def look(self, account: RatedAccount) -> RateDecision | None:
        """The refusal that `decide` would come to now; None of anything else. Counts nothing."""
        whole, now_s = account.whole_rate, self._now_s()
        assert whole is not None, "it has no rate"
        if self._buckets is None or self._is_silent or whole.requests_per_s <= 0:
            own = account.own_rate
            decision = None if own is None else admit(account.rate, own, now_s)
            return None if decision is None or decision.is_admitted else decision
        if account.lease.tokens > 0 or now_s >= account.lease.empty_until_s:
            return None
        return self._refusal(account, whole)

    async def ask(self, account: RatedAccount) -> RateDecision | None:
        """On a request that is undecided: the refusal; None: it may go on. Cancelled it has used no token."""
        waiting: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        account.waiting.append(waiting)
        self._draw_soon(account)
        try:
            async with asyncio.timeout(2 * ANSWER_S):  # one that is under way may come first
                answer = await waiting
        except TimeoutError:
            answer = Undecided.ASK
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled() and waiting.result() is None:
                account.lease.tokens += 1
                self._holding.add(account)
            raise
        if not isinstance(answer, Undecided):
            return answer
        return None if account.own_rate is None else self._alone(account)

    async def run(self) -> None:
        """Draw, tell what was spent and give back what is idle, until cancelled."""
        tried_s = -inf
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._give_back_what_is_idle(), name="idle-tokens")
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_EVERY_S):
                        await self._wake.wait()
                self._wake.clear()
                if self._is_silent:
                    self._give_up_waiting()
                    if self._now_s() - tried_s >= _TRY_EVERY_S:
                        tried_s = self._now_s()
                        await self._try_again()
                else:
                    self._start_draws(tasks)

    async def _give_back_what_is_idle(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            await self._give_back(lambda account: rate_lease.idle_tokens(account.lease, self._now_s()))

    async def stop(self) -> None:
        """Give back all that was drawn."""
        await self._give_back(lambda account: account.lease.tokens)

    def _alone(self, account: RatedAccount) -> RateDecision | None:
        """By this process's own part."""
        own = account.own_rate
        assert own is not None, "it has no rate"
        decision = admit(account.rate, own, self._now_s())
        account.rate = decision.state
        return None if decision.is_admitted else decision

    def _refusal(self, account: RatedAccount, whole: RateLimit) -> RateDecision:
        now_s, lease = self._now_s(), account.lease
        debt_s = rate_lease.debt_s(lease, rate=whole.requests_per_s, now_s=now_s)
        return RateDecision(False, account.rate, 0, debt_s, max(0.0, lease.next_token_s - now_s))

    def _draw_soon(self, account: RatedAccount) -> None:
        if account not in self._drawing:
            self._wanted.add(account)
            self._wake.set()

    def _start_draws(self, tasks: asyncio.TaskGroup) -> None:
        for account in self._wanted:
            self._drawing.add(account)
            tasks.create_task(self._draw(account), name="draw-tokens")
        self._wanted.clear()

    async def _draw(self, account: RatedAccount) -> None:
        whole, lease = account.whole_rate, account.lease
        try:
            if whole is None or whole.requests_per_s <= 0:  # since a moment ago
                _leave_to_own(account)
                return
            lease.untold += self._take_over_own(account)
            ahead = rate_lease.wanted(lease, burst=whole.burst, processes=self.processes, now_s=self._now_s())
            want, told = len(account.waiting) + ahead, lease.untold
            found = await self._ask_bucket(account.name, whole, want=want, spent=told)
            if found is None:
                _leave_to_own(account)
                return
            granted, rate, burst = found.granted, whole.requests_per_s, whole.burst
            rate_lease.drawn(
                lease, granted=granted, wanted=want, told=told, debt_s=found.debt_s, rate=rate, burst=burst, now_s=self._now_s()
            )
            self._decide_those_that_wait(account, whole, is_empty=granted < want)
        finally:
            self._drawing.discard(account)
            if lease.tokens > 0:
                self._holding.add(account)
            if account.waiting:
                self._draw_soon(account)

    def _take_over_own(self, account: RatedAccount) -> int:
        """Tokens of this process's own bucket that were used while the shared ones were silent, and have not come back since."""
        own, debt_s = account.own_rate, account.rate.full_at_s - self._now_s()
        account.rate = RateState()
        return 0 if own is None or debt_s <= 0 else int(debt_s * own.requests_per_s)

    async def _ask_bucket(self, tenant: str, limit: RateLimit, *, want: int, spent: int) -> Drawn | None:
        """None: it is silent."""
        assert self._buckets is not None, "there is none"
        try:
            async with asyncio.timeout(ANSWER_S):
                found = await self._buckets.draw(tenant, limit, want=want, spent=spent)
        except (StoreUnavailable, TimeoutError) as exc:
            if not self._is_silent:
                why = str(exc) or f"no answer within {ANSWER_S:g} s"
                _log.warning("tenants' rates are enforced by each process for its part, since their buckets are silent: %s", why)
            self._is_silent = True
            return None
        if self._is_silent:
            _log.info("tenants' rates are enforced over all processes together again")
        self._is_silent = False
        return found

    def _decide_those_that_wait(self, account: RatedAccount, whole: RateLimit, *, is_empty: bool) -> None:
        lease, waiting = account.lease, account.waiting
        while waiting and (lease.tokens > 0 or is_empty):
            asked = waiting.popleft()
            if not asked.done():
                is_admitted = lease.tokens > 0
                lease.tokens -= is_admitted
                asked.set_result(None if is_admitted else self._refusal(account, whole))

    def _give_up_waiting(self) -> None:
        for account in self._wanted:
            _leave_to_own(account)
        self._wanted.clear()

    async def _try_again(self) -> None:
        """Whether it answers; no tenant has an empty name."""
        await self._ask_bucket("", RateLimit(1.0, 1.0), want=0, spent=0)

    async def _give_back(self, tokens_of: Callable[[RatedAccount], int]) -> None:
        if self._buckets is None or self._is_silent:
            return
        for account in tuple(self._holding):
            tokens, whole = tokens_of(account), account.whole_rate
            if tokens and whole is not None and whole.requests_per_s > 0 and not self._is_silent:
                account.lease.tokens -= tokens
                await self._ask_bucket(account.name, whole, want=0, spent=-tokens)
            if not account.lease.tokens:
                self._holding.discard(account)


def _leave_to_own(account: RatedAccount) -> None:
    """All that wait: this process's part decides."""
    while account.waiting:
        asked = account.waiting.popleft()
        if not asked.done():
            asked.set_result(Undecided.ASK)
