"""Verbatim cache: answers byte-equal messages without parsing them, with cache hits or with a refusal that still holds.

A frontend looks a message up by its bytes, without those that differ for each request and do not affect the answer, such as
ids (`protocols/per_request`). The first hit works out everything that follows from the bytes (caller, route, cache key), which
holds until access rules or loaded contents change. Each later hit only checks that, applies the tenant's limits, and is
counted. The counts are flushed to metrics and metering ten times a second, sooner under many hits, and before they are read.

A busy model's refusal is kept for a second, for all messages of its kind: in a spike most requests are refused, and parsing them
would take the time of those that can be answered. Whether it still holds is asked each time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from control_plane.admission.tenant_limits import TenantAccount
from control_plane.cache.domain.eviction import CacheEntry
from control_plane.cache.response_cache import ResponseCache
from control_plane.core.algorithms.bounded_cache import BoundedCache
from control_plane.core.errors import Overloaded
from control_plane.core.infer_call import CacheStatus, Frontend, InferCall
from control_plane.core.principal import Principal
from control_plane.inference.in_flight.running_requests import RunningRequests

AnswerT = TypeVar("AnswerT")

MessageKey = tuple[bytes, bytes] | tuple[bytes, bytes, int]
"""The key of a message: of its head and of its body; where the id is cut out of the body, the id's length too, so
that the answers to all these messages have one length."""

KindKey = tuple[int, bytes] | tuple[int, bytes, bytes]
"""The key of all messages to one model whose heads are equal, and which have about the same size: of that (`size_class`), of the
head and, where that does not name the model, of the piece of the body that does."""

size_class = int.bit_length
"""The class of messages whose sizes in bytes differ by less than a factor of two, so that they cost about the same."""

_MAX_BYTES = 2**24
_MAX_ENTRY_BYTES = _MAX_BYTES // 1024
"""A table of few large answers would drop others often; larger ones take the ordinary path."""
_REFUSED_FOR_S = 1.0
"""Seconds for which a refusal is kept: the least that callers are told to wait."""
_MAX_REFUSALS, _MAX_REFUSAL_BYTES = 1024, 3072
"""Refusals that are kept at a time, and bytes of each together with its head: who sends other heads each time, or large ones, should
not displace cached answers. All together they take a fifth of the table."""
_IN_SEQUENCE = b"sequence_id"
"""What a message has in it that may go on with a sequence, for which the model has slots of its own."""
_FLUSH_EVERY_S = 0.1
"""Seconds between two flushes of counts."""
MOST_UNFLUSHED = 256
"""Entries whose hits are flushed in one turn of the event loop, some 5 us each."""


@dataclass(slots=True, eq=False)
class _VerbatimEntry(Generic[AnswerT]):
    """Entry of the verbatim cache: the answer, and what must be unchanged for it to hold."""

    answer: AnswerT
    principal: Principal
    account: TenantAccount
    call: InferCall
    """The call as it goes to Triton, after routing."""
    access_generation: int
    cached: CacheEntry | None = None
    """The response cache's entry that it is an answer of; None for a refusal."""
    contents_generation: int = 0
    refuses: Callable[[float], bool] | None = None
    """Whether a refusal still holds for a message that has waited for so many seconds."""
    unflushed: int = 0
    """Hits that have not been flushed to metrics and metering."""


class VerbatimCache(Generic[AnswerT]):
    """Verbatim cache of one data port: key of a message -> encoded answer.

    A message includes its sender's credentials, and nothing else that its answer depends on comes from the
    connection.
    """

    def __init__(
        self, frontend: Frontend, running: RunningRequests, cache: ResponseCache | None, *, today_s: Callable[[], float] = time.time
    ) -> None:
        """`today_s` is seconds since 1970."""
        self._frontend = frontend
        self._running = running
        self._cache = cache
        self._access = running.governance.access
        self._fingerprints = None if cache is None else cache.fingerprints
        self._admission = running.governance.admission
        self._today_s = today_s
        self._hits: BoundedCache[MessageKey | KindKey, _VerbatimEntry[AnswerT]] = BoundedCache(_MAX_BYTES, max_entry_bytes=_MAX_ENTRY_BYTES)
        self.entries: Sized = self._hits.keys
        """The cached answers, of which callers look at the number: none needs to be asked for while it is 0."""
        self._refused: dict[KindKey, float] = {}
        """Keys of refusals, and when each is forgotten (`now_s`)."""
        self._to_flush: list[_VerbatimEntry[AnswerT]] = []
        self._flush_timer: asyncio.TimerHandle | None = None

    def answer(self, message: MessageKey) -> AnswerT | None:
        """The answer to this message, if it is cached, still valid, and its tenant is surely within its
        limits; else None.

        Raises LimitExceeded, after recording the refused request.
        """
        hit = self._hits.get(message)
        if hit is None:
            return None
        if not self._holds(hit):
            self._hits.forget(message)
            return None
        return self._counted(hit)

    def refusal(self, kind: KindKey, body: bytes, *, waited_s: float = 0.0) -> AnswerT | None:
        """The refusal of a message of this kind and body which has waited for so long, if an equal one was refused of late and the
        model still refuses such; else None. Raises as `answer` does."""
        hit = self._hits.get(kind) if self._refused else None
        if hit is None or hit.refuses is None or not self._is_as_it_was(hit) or _IN_SEQUENCE in body or not hit.refuses(waited_s):
            return None
        return self._counted(hit)

    def _counted(self, hit: _VerbatimEntry[AnswerT]) -> AnswerT | None:
        """Count a hit, if its tenant is surely within its limits, and return its answer. Raises LimitExceeded."""
        # A tenant without limits need not be admitted.
        if hit.account.is_limited and not self._running.count_completed(self._frontend, hit.principal, hit.account, hit.call):
            return None
        hit.unflushed += 1
        if hit.unflushed == 1:  # one timer for all entries, and each entry is listed once
            self._to_flush.append(hit)
            if len(self._to_flush) == MOST_UNFLUSHED:
                self.flush_counts()
            else:
                self._flush_soon()
        return hit.answer

    def _flush_soon(self) -> None:
        if self._flush_timer is None:
            self._flush_timer = asyncio.get_running_loop().call_later(_FLUSH_EVERY_S, self.flush_counts)

    def takes(self, principal: Principal, size_bytes: int) -> bool:
        """Whether an answer to this caller may be kept, which has about so many bytes together with its message."""
        # Not to a token, which must be checked each time: its issuer may revoke it. Not with a request log:
        # each of its lines needs the request's id and time, which this path does not read.
        return size_bytes <= _MAX_ENTRY_BYTES and principal.is_known and not self._running.meter.has_log

    def keep(self, message: MessageKey, principal: Principal, call: InferCall, key: bytes, answer: AnswerT, *, size_bytes: int) -> None:
        """Keep the `answer` just given to `message` by a hit on the response cache's entry `key`; `size_bytes`
        counts both.

        The caller has just been authenticated and authorised, and `takes` has said yes; `call` is the call as
        it goes to Triton.
        """
        entry = None if self._cache is None else self._cache.entry(key)
        if entry is not None and self._cache is not None:
            account = self._admission.account(principal.tenant)
            hit = _VerbatimEntry(answer, principal, account, call, self._access.generation, entry, self._cache.fingerprints.generation)
            self._hits.keep(message, hit, size_bytes=size_bytes)

    def keep_refusal(
        self,
        kind: KindKey,
        principal: Principal,
        call: InferCall,
        error: Overloaded,
        answer: AnswerT,
        *,
        waited_s: float | None,
        size_bytes: int,
    ) -> None:
        """Keep the refusal just given to a message of this kind, which had waited for `waited_s` of its time, for a second, unless
        nobody knows whether it holds for another, or many are kept. None: what such messages wait is not taken off their time. As
        `keep` otherwise."""
        holds = error.holds_for_equals
        if holds is None or len(self._refused) >= _MAX_REFUSALS or size_bytes > _MAX_REFUSAL_BYTES:
            return
        account = self._admission.account(principal.tenant)
        hit = _VerbatimEntry(answer, principal, account, call, self._access.generation)
        hit.refuses = lambda others_s: holds(0.0 if waited_s is None else others_s - waited_s)  # who waited for less has more time left
        self._hits.keep(kind, hit, size_bytes=size_bytes)
        self._refused.setdefault(kind, self._running.now_s() + _REFUSED_FOR_S)
        self._flush_soon()

    def flush_counts(self) -> None:
        """Flush the counts of all hits so far to metrics and metering, and forget old refusals."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        for hit in self._to_flush:
            count, hit.unflushed = hit.unflushed, 0
            if hit.cached is None:
                self._running.refusals(self._frontend, hit.principal, hit.call, count)
                continue
            self._running.hits(self._frontend, hit.principal, hit.call, count)
            if self._cache is not None:
                self._cache.counts[hit.call.model_name, CacheStatus.HIT] += count
        self._to_flush.clear()
        if self._refused:
            self._forget_refusals()

    def _forget_refusals(self) -> None:
        """Forget the refusals that are old: what they say of when to try again is no longer true."""
        now_s = self._running.now_s()
        for kind in [kind for kind, until_s in self._refused.items() if until_s <= now_s]:
            del self._refused[kind]
            self._hits.forget(kind)
        if self._refused:
            self._flush_soon()

    def _holds(self, hit: _VerbatimEntry[AnswerT]) -> bool:
        """Whether a cached answer still holds; refreshes the entry's last use."""
        cache, fingerprints, cached = self._cache, self._fingerprints, hit.cached
        return (
            cache is not None
            and fingerprints is not None
            and cached is not None
            and self._is_as_it_was(hit)
            and hit.contents_generation == fingerprints.generation
            and cache.reuse(cached)
        )

    def _is_as_it_was(self, hit: _VerbatimEntry[AnswerT]) -> bool:
        """Whether the rules and the caller's key are as they were, and no log wants to see the request."""
        expires_s = hit.principal.expires_s
        return (
            not self._running.meter.has_log  # somebody has begun to read requests
            and hit.access_generation == self._access.generation
            and (expires_s is None or self._today_s() < expires_s)
        )


class VerbatimCaches:
    """Verbatim caches of one process, one of each frontend."""

    def __init__(self, running: RunningRequests, cache: ResponseCache | None, *, today_s: Callable[[], float] = time.time) -> None:
        """`today_s` is seconds since 1970."""
        self._running, self._cache, self._today_s = running, cache, today_s
        self._of: dict[Frontend, VerbatimCache[Any]] = {}

    def make(self, frontend: Frontend) -> VerbatimCache[Any]:
        """Make the verbatim cache of one frontend; to be called once for each."""
        hits = self._of[frontend] = VerbatimCache(frontend, self._running, self._cache, today_s=self._today_s)
        return hits

    def flush_counts(self) -> None:
        """Flush the counts of all hits so far to metrics and metering."""
        for hits in self._of.values():
            hits.flush_counts()
