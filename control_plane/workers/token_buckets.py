"""The buckets that the workers of one gateway draw tokens from: in the parent, and how a worker asks for them."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable

from control_plane.admission.domain.rate_limit import Drawn, RateLimit, RateState, draw
from control_plane.workers.messages import DrawTokens, TokensDrawn

_MOST_KEPT = 10_000
"""Buckets; beyond it those that are full, which need not be remembered, are forgotten."""


class TokenBuckets:
    """The parent's; `admission/ports.TokenBuckets`, and without waiting."""

    def __init__(self, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._states: dict[str, RateState] = {}

    def answer(self, asked: DrawTokens) -> TokensDrawn:
        """A worker's draw."""
        found = self.draw_now(asked.tenant, RateLimit(asked.requests_per_s, asked.burst), want=asked.want, spent=asked.spent)
        return TokensDrawn(asked.number, found.granted, found.debt_s)

    def draw_now(self, tenant: str, limit: RateLimit, *, want: int, spent: int) -> Drawn:
        now_s = self._now_s()
        self._states[tenant], found = draw(self._states.get(tenant, RateState()), limit, now_s, want=want, spent=spent)
        if len(self._states) > _MOST_KEPT:
            self._states = {name: state for name, state in self._states.items() if state.full_at_s > now_s}
        return found

    async def draw(self, tenant: str, limit: RateLimit, *, want: int, spent: int) -> Drawn:
        return self.draw_now(tenant, limit, want=want, spent=spent)

    async def close(self) -> None: ...


class ParentsBuckets:
    """A worker's `admission/ports.TokenBuckets`: asks over the link; `answered` is called with what comes back.

    One that is silent answers never.
    """

    def __init__(self, send: Callable[[DrawTokens], None]) -> None:
        self._send = send
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Drawn]] = {}

    async def draw(self, tenant: str, limit: RateLimit, *, want: int, spent: int) -> Drawn:
        number = next(self._numbers)
        waiting: asyncio.Future[Drawn] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiting
        try:
            self._send(DrawTokens(number, tenant, limit.requests_per_s, limit.burst, want, spent))
            return await waiting
        finally:
            del self._waiting[number]

    def answered(self, drawn: TokensDrawn) -> None:
        """Hand on what was drawn; who asked may have given up."""
        waiting = self._waiting.get(drawn.number)
        if waiting is not None and not waiting.done():
            waiting.set_result(Drawn(drawn.granted, drawn.debt_s))

    async def close(self) -> None: ...
