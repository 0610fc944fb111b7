"""The asking half of `cache/adapters/redis_cache`: all lookups that wait together go in one MGET.

A lookup is sent only while it is worth its caller's waiting (`cache/domain/lookup_worth`); what comes later finds
nobody. What answers take is known from lookups and, while there are none, from trials that nobody waits for: so
a Redis that has become quick again is asked again, on any host, and nobody pays for finding out.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from control_plane.cache.adapters.loop_timeout import LoopTimeout
from control_plane.cache.adapters.redis_cache_connection import CacheConnection
from control_plane.cache.adapters.redis_gate import LookupGate
from control_plane.cache.domain.circuit_breaker import CircuitBreaker
from control_plane.cache.domain.shared_value import name_of, unframe
from control_plane.telemetry.shared_cache_counts import SharedCacheCounts

_log = logging.getLogger(__name__)

_HANGS_S = 0.25
"""Then the connection is given up: its answer must not be taken for another call's."""
_FIRST_LOOK_S = 1.0

_TRY_EVERY_S = 0.2
"""While nobody asks, so that what it takes is known, and a dead connection found, before somebody does."""

_MOST_WAITING = 1000
_KEYS_AT_ONCE = 64
_NOBODYS_KEY = b""


@dataclass(frozen=True, slots=True, eq=False)
class _Lookup:
    keys: Sequence[bytes]
    found: asyncio.Future[list[bytes | None]]


class _OutOfStep(Exception):
    """What comes are answers to other calls: they end with the connection."""


class CacheLookups:
    """Lookups of one process, over a connection of its own; `run` does what is asked for."""

    def __init__(
        self,
        connection: CacheConnection,
        counts: SharedCacheCounts,
        *,
        on_first_connection: Callable[[CacheConnection], Awaitable[None]],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_open = True
        """Whether it is known not to answer; while a connection is only made anew it is not."""
        self._is_asking = False
        self._connection = connection
        self._counts = counts
        self._on_first_connection: Callable[[CacheConnection], Awaitable[None]] | None = on_first_connection
        self._now_s = now_s
        self._breaker = CircuitBreaker()
        self._gate = LookupGate(connection.place)
        self._sent_s: float | None = None
        self._waiting: asyncio.Queue[_Lookup] = asyncio.Queue(_MOST_WAITING)

    @property
    def answer_s(self) -> float:
        """What an answer usually takes, as this process experiences it; 0.0 while it is not connected."""
        return self._gate.answer_s if self._is_asking else 0.0

    async def get(self, keys: Sequence[bytes], *, computing_s: float) -> list[bytes | None]:
        """What has come of them while waiting for it was better than computing."""
        if not keys:
            return []
        if not self._is_asking:
            self._counts.away += len(keys)
            return [None] * len(keys)
        now_s = self._now_s()
        waited_s = 0.0 if self._sent_s is None else now_s - self._sent_s
        patience_s = self._gate.patience_s(keys, computing_s, waited_s=waited_s, now_s=now_s)
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
            for lookup in lookups:
                lookup.found.cancel()
        return [value for lookup in lookups for value in self._result(lookup)]

    def _ask(self, keys: Sequence[bytes]) -> _Lookup:
        """Many keys are several lookups: nobody is held up by reading them all."""
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
        """Until cancelled, through outages."""
        try:
            while True:
                await self._run_once()
                await asyncio.sleep(self._breaker.pause_s)
        finally:
            self.is_open = True

    async def _run_once(self) -> None:
        """For as long as one connection lasts."""
        is_there = False
        try:
            await self._connect()
            is_there = True
            await self._answer_lookups()
        except _OutOfStep:
            pass
        except Exception as exc:  # what is no Redis may answer anything, and redis-py raises anything over it
            self._failed(self._connection.describe(exc), is_away=not is_there)
        finally:
            self._stop_asking()
            self._connection.drop()

    async def _connect(self) -> None:
        await self._connection.open()
        if self._on_first_connection is not None:
            async with LoopTimeout(_FIRST_LOOK_S):
                await self._on_first_connection(self._connection)
            self._on_first_connection = None
        self._gate.begin_anew()
        await self._exchange([])

    async def _answer_lookups(self) -> None:
        """Until the connection is no good any more, which raises whatever it does."""
        while True:
            while self._breaker.is_open:
                self._stop_asking()
                await asyncio.sleep(self._breaker.pause_s)
                await self._exchange([])
            self.is_open, self._is_asking = False, True
            await self._exchange(await self._next_lookups())

    async def _next_lookups(self) -> list[_Lookup]:
        """What waits, as much as is asked for at once; nothing when it is time for a trial."""
        due_s = self._now_s() + _TRY_EVERY_S
        try:
            async with asyncio.timeout(_TRY_EVERY_S):
                lookups = [await self._waiting.get()]
        except TimeoutError:
            self._gate.loop_was_late(max(0.0, self._now_s() - due_s))
            return []
        count = len(lookups[0].keys)
        while count < _KEYS_AT_ONCE and not self._waiting.empty():
            lookups.append(self._waiting.get_nowait())
            count += len(lookups[-1].keys)
        return [lookup for lookup in lookups if not lookup.found.done()]

    async def _exchange(self, lookups: list[_Lookup]) -> None:
        """Ask for all of them at once, or as a trial for what was passed over. Raises whatever goes wrong."""
        keys = [key for lookup in lookups for key in lookup.keys] or [self._gate.take_passed_over() or _NOBODYS_KEY]
        self._sent_s = began_s = self._now_s()
        try:
            async with LoopTimeout(_HANGS_S):
                framed = await self._connection.get_many([name_of(key) for key in keys])
        except BaseException:
            self._give_up(lookups)
            raise
        finally:
            self._sent_s = None
        values = [None if value is None else unframe(key, value) for key, value in zip(keys, framed, strict=True)]
        self._judge(self._now_s() - began_s, keys, values)
        self._answer(lookups, framed, values)
        if values.count(None) > framed.count(None):
            await self._require_step()

    async def _require_step(self) -> None:
        async with LoopTimeout(_HANGS_S):
            if not await self._connection.is_in_step():
                raise _OutOfStep

    def _answer(self, lookups: list[_Lookup], framed: list[bytes | None], values: list[bytes | None]) -> None:
        """To each its own, unless it has left."""
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

    def _judge(self, took_s: float, keys: list[bytes], values: list[bytes | None]) -> None:
        wanted = 0 if keys == [_NOBODYS_KEY] else len(keys)
        self._gate.answered(took_s, hits=len(values) - values.count(None), keys=wanted)
        was_open = self._breaker.is_open
        self._breaker.succeeded(self._now_s())
        if was_open and not self._breaker.is_open:
            _log.info("the shared cache at %s is back", self._connection.place)

    def _failed(self, why: str, *, is_away: bool = False) -> None:
        was_open = self._breaker.is_open
        self._breaker.failed(self._now_s(), is_away=is_away)
        self.is_open |= self._breaker.is_open
        if self._breaker.is_open and not was_open:
            _log.warning("the shared cache at %s is not used for now, answers are computed instead: %s", self._connection.place, why)

    def _stop_asking(self) -> None:
        self._is_asking = False
        self._give_up([self._waiting.get_nowait() for _ in range(self._waiting.qsize())])

    def _give_up(self, lookups: Sequence[_Lookup]) -> None:
        for lookup in lookups:
            if not lookup.found.done():
                self._counts.failed += len(lookup.keys)
                lookup.found.set_result([None] * len(lookup.keys))
