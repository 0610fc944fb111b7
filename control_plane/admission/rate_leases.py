"""Distributed rate limiting: processes lease tokens from shared token buckets and decide on requests by the
tokens they hold.

`admission/tenant_limits` asks for each request of a tenant with a rate. Far from the limit a request is
decided here; near it the request waits for the bucket, mostly half a millisecond. While the buckets do not
answer no request waits: each process enforces its share of every rate (`admission/tenant_shares`), so that
all together admit about the whole.
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
from control_plane.admission.domain.rate_lease import LeaseDecision, TokenLease
from control_plane.admission.domain.rate_limit import Draw, RateDecision, RateLimit, RateState, admit, state_after
from control_plane.admission.ports import TokenBuckets
from control_plane.core.errors import StoreUnavailable

_log = logging.getLogger(__name__)

ANSWER_S = 0.25
"""Time limit for an answer of the buckets; after it they count as silent."""
_LOOK_EVERY_S = 0.25
"""Pause between looks for idle tokens to give back."""
_PROBE_EVERY_S = 1.0
"""Pause between probes of silent buckets."""


class Undecided(Enum):
    """Answer of `RateLeases.decide` where only the bucket can decide: `RateLeases.ask` asks it."""

    ASK = "ask"


Answer = RateDecision | Undecided | None
"""Decision on a request: a refusal, None if it is admitted, or `Undecided`."""


class RatedAccount(Protocol):
    """A tenant with a rate: `admission/tenant_limits.TenantAccount`."""

    rate: RateState
    """State of this process's own token bucket, which decides while the shared ones are silent."""
    lease: TokenLease
    waiting: deque[asyncio.Future[Answer]]
    """Requests that wait for the bucket's decision; `Undecided` tells them that it is silent."""

    @property
    def name(self) -> str: ...

    @property
    def whole_rate(self) -> RateLimit | None:
        """The limit over all processes."""

    @property
    def own_rate(self) -> RateLimit | None:
        """This process's share of the limit."""


class RateLeases:
    """Client side of the shared token buckets: one token lease for each tenant with a rate.

    Without `buckets` this is the only process, and it decides alone.
    """

    def __init__(self, buckets: TokenBuckets | None = None, *, now_s: Callable[[], float] = time.monotonic) -> None:
        """`now_s` is the event loop's clock."""
        self.processes = 1
        """Processes that draw from the same buckets, as far as is known."""
        self._buckets = buckets
        self._now_s = now_s
        self._buckets_are_down = False
        self._wanted: set[RatedAccount] = set()
        self._drawing: set[RatedAccount] = set()
        self._holding: set[RatedAccount] = set()
        self._wake = asyncio.Event()

    def decide(self, account: RatedAccount) -> Answer:
        """Decide on a request that comes now; its tenant must have a rate."""
        whole = account.whole_rate
        assert whole is not None, "it has no rate"
        if self._buckets is None or self._buckets_are_down or whole.requests_per_s <= 0:
            return self._decide_locally(account)
        now_s, lease = self._now_s(), account.lease
        taking = rate_lease.decide(lease, whole.requests_per_s, whole.burst, self.processes, now_s)
        if taking is LeaseDecision.ADMITTED:
            if rate_lease.is_low(lease, now_s):
                self._draw_soon(account)
            return None
        return Undecided.ASK if taking is LeaseDecision.ASK else self._refusal(account, whole)

    def peek(self, account: RatedAccount) -> RateDecision | None:
        """Return the refusal that `decide` would give now, or None if it would admit or leave it undecided;
        uses no token.
        """
        whole, now_s = account.whole_rate, self._now_s()
        assert whole is not None, "it has no rate"
        if self._buckets is None or self._buckets_are_down or whole.requests_per_s <= 0:
            own = account.own_rate
            decision = None if own is None else admit(account.rate, own, now_s)
            return None if decision is None or decision.is_admitted else decision
        if account.lease.tokens > 0 or now_s >= account.lease.empty_until_s:
            return None
        return self._refusal(account, whole)

    async def ask(self, account: RatedAccount) -> RateDecision | None:
        """Wait for the bucket's decision: a refusal, or None if the request is admitted. Cancelled it has
        used no token.
        """
        waiting: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        account.waiting.append(waiting)
        self._draw_soon(account)
        try:
            # Twice the time limit of a draw: the one under way, which does not include this request, is
            # finished first.
            async with asyncio.timeout(2 * ANSWER_S):
                answer = await waiting
        except TimeoutError:
            answer = Undecided.ASK
        except asyncio.CancelledError:
            # The token may have been granted in the turn of the loop in which the request was cancelled: it
            # stays in the lease.
            if waiting.done() and not waiting.cancelled() and waiting.result() is None:
                account.lease.tokens += 1
                self._holding.add(account)
            raise
        if not isinstance(answer, Undecided):
            return answer
        return None if account.own_rate is None else self._decide_locally(account)

    async def run(self) -> None:
        """Draw tokens, report those spent in advance and give idle ones back, until cancelled."""
        tried_s = -inf
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._give_back_what_is_idle(), name="idle-tokens")
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_EVERY_S):
                        await self._wake.wait()
                self._wake.clear()
                if self._buckets_are_down:
                    self._give_up_waiting()
                    if self._now_s() - tried_s >= _PROBE_EVERY_S:
                        tried_s = self._now_s()
                        await self._try_again()
                else:
                    self._start_draws(tasks)

    async def _give_back_what_is_idle(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            await self._give_back(lambda account: rate_lease.idle_tokens(account.lease, self._now_s()))

    async def stop(self) -> None:
        """Give all tokens back to the buckets; called when the process shuts down."""
        await self._give_back(lambda account: account.lease.tokens)

    def _decide_locally(self, account: RatedAccount) -> RateDecision | None:
        """Decide by this process's own bucket, which has its share of the rate."""
        own = account.own_rate
        assert own is not None, "it has no rate"
        now_s = self._now_s()
        after = state_after(account.rate, own, now_s)
        if after is None:
            return admit(account.rate, own, now_s)
        account.rate = after
        return None

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
        """Draw once for the requests that wait and some ahead; at most one draw of a tenant is under way at a
        time.
        """
        whole, lease = account.whole_rate, account.lease
        try:
            if whole is None or whole.requests_per_s <= 0:  # the limit was changed a moment ago
                _fall_back_to_own_bucket(account)
                return
            lease.unreported += self._take_over_own(account)
            ahead = rate_lease.wanted(lease, burst=whole.burst, processes=self.processes, now_s=self._now_s())
            want, told = len(account.waiting) + ahead, lease.unreported
            found = await self._ask_bucket(account.name, whole, want=want, spent=told)
            if found is None:
                _fall_back_to_own_bucket(account)
                return
            granted, rate, burst = found.granted, whole.requests_per_s, whole.burst
            rate_lease.drawn(
                lease, granted=granted, wanted=want, told=told, debt_s=found.debt_s, rate=rate, burst=burst, now_s=self._now_s()
            )
            self._decide_those_that_wait(account, whole, is_empty=granted < want)
        finally:
            # Requests that came while the draw was under way are the next draw's.
            self._drawing.discard(account)
            if lease.tokens > 0:
                self._holding.add(account)
            if account.waiting:
                self._draw_soon(account)

    def _take_over_own(self, account: RatedAccount) -> int:
        """Empty this process's own bucket, and return the tokens it owes: spent while the shared buckets were
        silent, not refilled since. The shared bucket is told of them, or an outage would end with another
        burst for everybody.
        """
        own, debt_s = account.own_rate, account.rate.full_at_s - self._now_s()
        account.rate = RateState()
        return 0 if own is None or debt_s <= 0 else int(debt_s * own.requests_per_s)

    async def _ask_bucket(self, tenant: str, limit: RateLimit, *, want: int, spent: int) -> Draw | None:
        """Draw from the tenant's bucket; None if it is silent. Logs when the buckets fall silent and when
        they answer again.
        """
        assert self._buckets is not None, "there is none"
        try:
            async with asyncio.timeout(ANSWER_S):
                found = await self._buckets.draw(tenant, limit, want=want, spent=spent)
        except (StoreUnavailable, TimeoutError) as exc:
            if not self._buckets_are_down:
                why = str(exc) or f"no answer within {ANSWER_S:g} s"
                _log.warning("tenants' rates are enforced by each process for its part, since their buckets are silent: %s", why)
            self._buckets_are_down = True
            return None
        if self._buckets_are_down:
            _log.info("tenants' rates are enforced over all processes together again")
        self._buckets_are_down = False
        return found

    def _decide_those_that_wait(self, account: RatedAccount, whole: RateLimit, *, is_empty: bool) -> None:
        """Give the tokens to waiting requests, oldest first; refuse the others if the bucket is empty."""
        lease, waiting = account.lease, account.waiting
        while waiting and (lease.tokens > 0 or is_empty):
            asked = waiting.popleft()
            if not asked.done():
                is_admitted = lease.tokens > 0
                lease.tokens -= is_admitted
                asked.set_result(None if is_admitted else self._refusal(account, whole))

    def _give_up_waiting(self) -> None:
        for account in self._wanted:
            _fall_back_to_own_bucket(account)
        self._wanted.clear()

    async def _try_again(self) -> None:
        """Probe silent buckets with a draw of no tokens; no tenant has the empty name."""
        await self._ask_bucket("", RateLimit(1.0, 1.0), want=0, spent=0)

    async def _give_back(self, tokens_of: Callable[[RatedAccount], int]) -> None:
        """Return tokens to the buckets, as many of each account as `tokens_of` says."""
        if self._buckets is None or self._buckets_are_down:
            return
        for account in tuple(self._holding):
            tokens, whole = tokens_of(account), account.whole_rate
            # Deducted before the call: requests that come meanwhile must not use tokens that are on their way
            # back.
            if tokens and whole is not None and whole.requests_per_s > 0 and not self._buckets_are_down:
                account.lease.tokens -= tokens
                await self._ask_bucket(account.name, whole, want=0, spent=-tokens)
            if not account.lease.tokens:
                self._holding.discard(account)


def _fall_back_to_own_bucket(account: RatedAccount) -> None:
    """End the wait of all requests for the bucket; each is then decided by this process's own bucket."""
    while account.waiting:
        asked = account.waiting.popleft()
        if not asked.done():
            asked.set_result(Undecided.ASK)
