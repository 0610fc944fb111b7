"""Token buckets that the workers of one gateway share: the buckets in the parent, and a worker's client of
them."""

from __future__ import annotations

import time
from collections.abc import Callable

from control_plane.admission.domain.rate_limit import Draw, RateLimit, RateState, draw
from control_plane.workers.messages.from_workers import DrawTokens
from control_plane.workers.messages.to_workers import TokensDrawn
from control_plane.workers.replies import Replies

_MAX_BUCKETS = 10_000
"""Number of buckets above which full ones are dropped; a full bucket needs no memory, as a new one is full
too."""


class TokenBuckets:
    """Token buckets of all tenants, in the parent: `admission/ports.TokenBuckets` without waiting."""

    def __init__(self, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._states: dict[str, RateState] = {}

    def answer(self, asked: DrawTokens) -> TokensDrawn:
        """Draw tokens for a worker."""
        found = self.draw_now(asked.tenant, RateLimit(asked.requests_per_s, asked.burst), want=asked.want, spent=asked.spent)
        return TokensDrawn(asked.number, found.granted, found.debt_s)

    def draw_now(self, tenant: str, limit: RateLimit, *, want: int, spent: int) -> Draw:
        now_s = self._now_s()
        self._states[tenant], found = draw(self._states.get(tenant, RateState()), limit, now_s, want=want, spent=spent)
        # A bucket that is full again is as good as a new one.
        if len(self._states) > _MAX_BUCKETS:
            self._states = {name: state for name, state in self._states.items() if state.full_at_s > now_s}
        return found

    async def draw(self, tenant: str, limit: RateLimit, *, want: int, spent: int) -> Draw:
        return self.draw_now(tenant, limit, want=want, spent=spent)

    async def close(self) -> None: ...


class RemoteTokenBuckets:
    """Client of the parent's token buckets, in a worker: `admission/ports.TokenBuckets` over the link.

    The worker calls `answered` with each reply. There is no timeout: `draw` waits until the reply comes or it
    is cancelled.
    """

    def __init__(self, send: Callable[[DrawTokens], None]) -> None:
        self._send = send
        self._replies = Replies[TokensDrawn]()

    async def draw(self, tenant: str, limit: RateLimit, *, want: int, spent: int) -> Draw:
        drawn = await self._replies.ask(
            lambda number: self._send(DrawTokens(number, tenant, limit.requests_per_s, limit.burst, want, spent))
        )
        return Draw(drawn.granted, drawn.debt_s)

    def answered(self, drawn: TokensDrawn) -> None:
        """Take in the parent's reply."""
        self._replies.answered(drawn.number, drawn)

    async def close(self) -> None: ...
