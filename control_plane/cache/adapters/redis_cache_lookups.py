"""Reading half of `cache/adapters/redis_cache`: batches the lookups that wait at the same time into one MGET.

A lookup is sent only while it is worth its caller's wait (`cache/domain/lookup_worth`); an answer that comes
after the caller has given up is dropped. Latency is measured on lookups and, while there are none, on probes
that no caller waits for: so a Redis that has become quick again is used again, on any host, and no request
pays for finding out.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from control_plane.cache.adapters.lookup_shedder import LookupShedder
from control_plane.cache.adapters.loop_timeout import LoopTimeout
from control_plane.cache.adapters.redis_cache_connection import CacheConnection
from control_plane.cache.domain.circuit_breaker import CircuitBreaker
from control_plane.cache.domain.shared_value import name_of, unframe
from control_plane.telemetry.shared_cache_counts import SharedCacheCounts

_log = logging.getLogger(__name__)

_HANGS_S = 0.25
"""Time limit for one exchange. After it the connection is dropped, since the late answer must not be taken
for the next call's.
"""
_FIRST_LOOK_S = 1.0
"""Time limit for what is asked once on the first connection."""

_PROBE_EVERY_S = 0.2
"""Pause between probes while there are no lookups: the latency is known, and a dead connection found, before
a request needs it.
"""

_MAX_WAITING = 1000
"""Lookups that may wait for the exchange under way; more than that are misses at once."""
_KEYS_AT_ONCE = 64
"""Most keys of one lookup, and about the most of one MGET."""
_PROBE_KEY = b""
"""Key of a probe; no request has it, so nothing is ever stored there."""


@dataclass(frozen=True, slots=True, eq=False)
class _Lookup:
    """A caller's lookup that waits in the queue or for its answer; a cancelled `found` means that the caller
    has left.
    """

    keys: Sequence[bytes]
    found: asyncio.Future[list[bytes | None]]


class _OutOfSync(Exception):
    """The connection's answers belong to other calls than the ones just made; only a new connection helps."""


class CacheLookups:
    """Batching reader of the shared cache: callers queue lookups in `get`, and `run` answers them over its
    own connection.
    """

    def __init__(
        self,
        connection: CacheConnection,
        counts: SharedCacheCounts,
        *,
        on_first_connection: Callable[[CacheConnection], Awaitable[None]],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_bypassed = True
        """Whether Redis is known not to answer. While a connection is merely being replaced this stays as it
        was.
        """
        self._is_asking = False
        self._connection = connection
        self._counts = counts
        self._on_first_connection: Callable[[CacheConnection], Awaitable[None]] | None = on_first_connection
        self._now_s = now_s
        self._breaker = CircuitBreaker()
        self._shedder = LookupShedder(connection.place)
        self._sent_s: float | None = None
        self._waiting: asyncio.Queue[_Lookup] = asyncio.Queue(_MAX_WAITING)

    @property
    def answer_s(self) -> float:
        """Median latency of a lookup in seconds, as this process experiences it; 0.0 while it is not
        connected.
        """
        return self._shedder.answer_s if self._is_asking else 0.0

    async def get(self, keys: Sequence[bytes], *, computing_s: float) -> list[bytes | None]:
        """Look up `keys` for as long as waiting is better than computing, which takes `computing_s`; None for
        each miss.
        """
        if not keys:
            return []
        if not self._is_asking:
            self._counts.away += len(keys)
            return [None] * len(keys)
        now_s = self._now_s()
        # A lookup is sent only after the exchange under way: if that hangs already, a new caller must not
        # wait behind it.
        waited_s = 0.0 if self._sent_s is None else now_s - self._sent_s
        patience_s = self._shedder.patience_s(keys, computing_s, waited_s=waited_s, now_s=now_s)
        if patience_s is None:
            self._counts.slow += len(keys)
            return [None] * len(keys)
        lookups = [self._ask(keys[first : first + _KEYS_AT_ONCE]) for first in range(0, len(keys), _KEYS_AT_ONCE)]
        try:
            async with LoopTimeout(patience_s):
                for lookup in lookups:
                    await lookup.found
        except TimeoutError:
            pass
        finally:
            # Those that were answered are not affected; for the others `_result` counts a late answer.
            for lookup in lookups:
                lookup.found.cancel()
        return [value for lookup in lookups for value in self._result(lookup)]

    def _ask(self, keys: Sequence[bytes]) -> _Lookup:
        """Queue one lookup; `get` splits many keys into several, so that reading one caller's does not hold
        up all others.
        """
        lookup = _Lookup(keys, asyncio.get_running_loop().create_future())
        if self._waiting.full():
            self._counts.slow += len(keys)
            lookup.found.set_result([None] * len(keys))
        else:
            self._waiting.put_nowait(lookup)
        return lookup

    def _result(self, lookup: _Lookup) -> list[bytes | None]:
        if lookup.found.cancelled():
            self._counts.late += len(lookup.keys)
            return [None] * len(lookup.keys)
        return lookup.found.result()

    async def run(self) -> None:
        """Connect, probe and answer lookups, reconnecting after outages, until cancelled."""
        try:
            while True:
                await self._run_once()
                await asyncio.sleep(self._breaker.pause_s)
        finally:
            self.is_bypassed = True

    async def _run_once(self) -> None:
        """Serve one connection from opening to failure; whatever fails is counted and logged, not raised."""
        is_there = False
        try:
            await self._connect()
            is_there = True
            await self._answer_lookups()
        except _OutOfSync:
            pass
        except Exception as exc:  # what is no Redis may answer anything
            self._failed(self._connection.describe(exc), is_away=not is_there)
        finally:
            self._stop_asking()
            self._connection.drop()

    async def _connect(self) -> None:
        """Open a connection and probe it. Raises whatever goes wrong."""
        await self._connection.open()
        if self._on_first_connection is not None:
            async with LoopTimeout(_FIRST_LOOK_S):
                await self._on_first_connection(self._connection)
            self._on_first_connection = None
        self._shedder.forget_latencies()
        # The first exchange is nobody's request: who asks never pays for finding out that the connection is no good.
        await self._exchange([])

    async def _answer_lookups(self) -> None:
        """Exchange lookups for answers until the connection fails; raises whatever it failed with."""
        while True:
            # Connected, but too slow or failing: only probes are sent until the breaker closes.
            while self._breaker.is_open:
                self._stop_asking()
                await asyncio.sleep(self._breaker.pause_s)
                await self._exchange([])
            self.is_bypassed, self._is_asking = False, True
            await self._exchange(await self._next_lookups())

    async def _next_lookups(self) -> list[_Lookup]:
        """Take the next batch from the queue, waiting for its first lookup; empty when it is time for a probe
        instead.
        """
        due_s = self._now_s() + _PROBE_EVERY_S
        try:
            async with asyncio.timeout(_PROBE_EVERY_S):
                lookups = [await self._waiting.get()]
        except TimeoutError:
            self._shedder.loop_was_late(max(0.0, self._now_s() - due_s))
            return []
        count = len(lookups[0].keys)
        while count < _KEYS_AT_ONCE and not self._waiting.empty():
            lookups.append(self._waiting.get_nowait())
            count += len(lookups[-1].keys)
        return [lookup for lookup in lookups if not lookup.found.done()]  # without those whose caller has left

    async def _exchange(self, lookups: list[_Lookup]) -> None:
        """Answer a batch with one MGET; an empty batch is a probe. Raises whatever goes wrong.

        A probe asks for a key that was lately passed over, if there is one, so that it measures the hit ratio
        as well.
        """
        keys = [key for lookup in lookups for key in lookup.keys] or [self._shedder.pop_shed_key() or _PROBE_KEY]
        self._sent_s = began_s = self._now_s()
        try:
            async with LoopTimeout(_HANGS_S):
                framed = await self._connection.get_many([name_of(key) for key in keys])
        except BaseException:
            # Callers wait for these: whatever has ended the exchange, they compute now.
            self._give_up(lookups)
            raise
        finally:
            self._sent_s = None
        values = [None if value is None else unframe(key, value) for key, value in zip(keys, framed, strict=True)]
        self._record(self._now_s() - began_s, keys, values)
        self._answer(lookups, framed, values)
        # A value was there and was not the key's: it is damaged, or this connection is one answer behind.
        if values.count(None) > framed.count(None):
            await self._require_sync()

    async def _require_sync(self) -> None:
        """Raise _OutOfSync where the connection's answers do not belong to its commands."""
        async with LoopTimeout(_HANGS_S):
            if not await self._connection.is_in_sync():
                raise _OutOfSync

    def _answer(self, lookups: list[_Lookup], framed: list[bytes | None], values: list[bytes | None]) -> None:
        """Give each lookup its part of the values, unless its caller has left."""
        first = 0
        for lookup in lookups:
            mine = slice(first, first := first + len(lookup.keys))
            if not lookup.found.done():
                self._count(framed[mine], values[mine])
                lookup.found.set_result(values[mine])

    def _count(self, framed: list[bytes | None], values: list[bytes | None]) -> None:
        misses, hits = framed.count(None), len(values) - values.count(None)
        self._counts.hits += hits
        self._counts.misses += misses
        self._counts.damaged += len(values) - hits - misses

    def _record(self, took_s: float, keys: list[bytes], values: list[bytes | None]) -> None:
        """Tell the shedder and the circuit breaker of an answer; a probe with nobody's key says nothing about
        the hit ratio.
        """
        wanted = 0 if keys == [_PROBE_KEY] else len(keys)
        self._shedder.answered(took_s, hits=len(values) - values.count(None), keys=wanted)
        was_open = self._breaker.is_open
        self._breaker.succeeded(self._now_s())
        if was_open and not self._breaker.is_open:
            _log.info("the shared cache at %s is back", self._connection.place)

    def _failed(self, why: str, *, is_away: bool = False) -> None:
        """Tell the circuit breaker of a failure, and log it if that opens the breaker: once per outage."""
        was_open = self._breaker.is_open
        self._breaker.failed(self._now_s(), is_away=is_away)
        self.is_bypassed |= self._breaker.is_open
        if self._breaker.is_open and not was_open:
            _log.warning("the shared cache at %s is not used for now, answers are computed instead: %s", self._connection.place, why)

    def _stop_asking(self) -> None:
        """Make every lookup a miss at once, those in the queue too, until the connection is used again."""
        self._is_asking = False
        self._give_up([self._waiting.get_nowait() for _ in range(self._waiting.qsize())])

    def _give_up(self, lookups: Sequence[_Lookup]) -> None:
        for lookup in lookups:
            if not lookup.found.done():
                self._counts.failed += len(lookup.keys)
                lookup.found.set_result([None] * len(lookup.keys))
