"""Hits that come again, byte for byte: all that follows from a message is worked out once, and holds until any of it changes.

A door asks with what came, before it reads it. What remains for each is whether everything is as it was, its tenant's limits,
and counting; that is told to metrics and metering ten times a second, and before anybody reads them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from control_plane.admission.tenant_limits import Account
from control_plane.cache.domain.cached_response import RepeatedRequest
from control_plane.cache.domain.eviction import Kept
from control_plane.cache.response_cache import CacheScope, ResponseCache
from control_plane.core.bounded_cache import BoundedCache
from control_plane.core.infer_call import CacheStatus, Door, InferCall
from control_plane.core.principal import Principal
from control_plane.inference.running_requests import RunningRequests

MessageT = TypeVar("MessageT", bound=Hashable)
AnswerT = TypeVar("AnswerT")

_MAX_BYTES = 2**24
_MAX_ENTRY_BYTES = _MAX_BYTES // 1024
_SETTLE_S = 0.1


@dataclass(slots=True, eq=False)
class _KnownHit(Generic[AnswerT]):
    answer: AnswerT
    size_bytes: int
    kept: Kept
    principal: Principal
    account: Account
    call: InferCall
    """As it goes to Triton."""
    access_generation: int
    contents_generation: int
    untold: int = 0
    """Hits that metrics and metering have not been told of."""


class KnownHits(Generic[MessageT, AnswerT]):
    """Answers of one data port to byte-equal messages. A message holds who sends it, and nothing else that its
    answer depends on comes from its connection."""

    def __init__(
        self, door: Door, running: RunningRequests, cache: ResponseCache | None, *, today_s: Callable[[], float] = time.time
    ) -> None:
        """`today_s` is seconds since 1970."""
        self._door = door
        self._running = running
        self._cache = cache
        self._access = running.governance.access
        self._admission = running.governance.admission
        self._today_s = today_s
        self._hits: BoundedCache[MessageT, _KnownHit[AnswerT]] = BoundedCache(_MAX_BYTES, max_entry_bytes=_MAX_ENTRY_BYTES)
        self._untold: list[_KnownHit[AnswerT]] = []
        self._telling: asyncio.TimerHandle | None = None

    def answer(self, message: MessageT) -> AnswerT | None:
        """The answer to this message, if it is known, nothing has changed and its tenant is known to have room.

        Raises LimitExceeded, and has then recorded it.
        """
        hit = self._hits.get(message)
        if hit is None:
            return None
        if not self._holds(hit):
            self._hits.forget(message, size_bytes=hit.size_bytes)
            return None
        if hit.account.is_limited and not self._running.let_by(self._door, hit.principal, hit.call, named=hit.call):
            return None
        if not hit.untold:
            self._untold.append(hit)
            if self._telling is None:
                self._telling = asyncio.get_running_loop().call_later(_SETTLE_S, self.settle)
        hit.untold += 1
        return hit.answer

    def keep(self, message: MessageT, principal: Principal, repeated: RepeatedRequest[Any], answer: AnswerT, *, size_bytes: int) -> None:
        """`message` has just been answered so, by a hit on `repeated`; both take `size_bytes`."""
        scope = repeated.scope
        if self._cache is None or not principal.is_known or not isinstance(scope, CacheScope) or self._running.governance.meter.has_log:
            return
        kept = self._cache.entry(repeated.key)
        if kept is not None:
            call = replace(repeated.call, model_name=scope.model)
            account = self._admission.account(principal.tenant)
            hit = _KnownHit(answer, size_bytes, kept, principal, account, call, self._access.generation, self._cache.generation)
            self._hits.keep(message, hit, size_bytes=size_bytes)

    def settle(self) -> None:
        """Tell of all hits so far."""
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        for hit in self._untold:
            count, hit.untold = hit.untold, 0
            self._running.hits(self._door, hit.principal, hit.call, count)
            if self._cache is not None:
                self._cache.counts[hit.call.model_name, CacheStatus.HIT] += count
        self._untold.clear()

    def _holds(self, hit: _KnownHit[AnswerT]) -> bool:
        cache, expires_s = self._cache, hit.principal.expires_s
        return (
            cache is not None
            and hit.access_generation == self._access.generation
            and hit.contents_generation == cache.generation
            and (expires_s is None or self._today_s() < expires_s)
            and cache.look_again(hit.kept)
        )
