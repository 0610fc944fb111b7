"""The asking half of `adapters/redis_cache`: all lookups that wait together go in one MGET.

A lookup is sent only while Redis answers in the time that its caller has; what comes later finds nobody.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from control_plane.adapters.redis_cache_connection import CacheConnection
from control_plane.codec.shared_cache_value import name_of, unframe
from control_plane.domain.shared_cache_counts import SharedCacheCounts
from control_plane.policy.circuit_breaker import CircuitBreaker

_log = logging.getLogger(__name__)

_LEAST_S = 0.001
"""What uvloop's timers can tell apart: less would be a whole millisecond, or none."""
_IN_TIME_S = 0.005
"""No caller has more patience: while an answer takes longer, nobody else begins to wait."""
_LATE_S = 0.02
"""A failure of Redis's, unless the answer is large; what takes less may as well be this process's own doing, on a busy machine."""
_LARGE_BYTES_PER_S = 100e6
"""Reading an answer in Python takes so long by itself, and twice that where others are read too."""
_HANGS_S = 0.1
"""Then the connection is given up: its answer must not be taken for another call's."""
_FIRST_LOOK_S = 1.0

_TRY_EVERY_S = 0.2
"""While nobody asks, so that what it takes is known, and a dead connection found, before somebody does."""
_TOOK_KEPT = 9
"""Of the last so many the third quickest is what one may hope for. On a busy machine half of them are this process's own waiting, and
one in time is worth some that are not; a Redis that is slow is always slow."""

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
    """Over a connection of its own; `run` does what is asked for."""

    def __init__(
        self, connection: CacheConnection, counts: SharedCacheCounts, *, on_first_connection: Callable[[CacheConnection], Awaitable[None]]
    ) -> None:
        self.is_open = True
        """Whether it is known not to answer; while a connection is only made anew it is not."""
        self._is_asking = False
        self._connection = connection
        self._counts = counts
        self._on_first_connection: Callable[[CacheConnection], Awaitable[None]] | None = on_first_connection
        self._breaker = CircuitBreaker()
        self._took_s: deque[float] = deque(maxlen=_TOOK_KEPT)
        self._hoped_s = 0.0
        self._sent_s: float | None = None
        self._waiting: asyncio.Queue[_Lookup] = asyncio.Queue(_MOST_WAITING)

    async def get(self, keys: Sequence[bytes], *, timeout_s: float) -> list[bytes | None]:
        """What has come of them by then."""
        if not self._is_worth(timeout_s):
            self._counts.skipped += len(keys)
            return [None] * len(keys)
        lookups = [self._ask(keys[first : first + _KEYS_AT_ONCE]) for first in range(0, len(keys), _KEYS_AT_ONCE)]
        try:
            async with asyncio.timeout(timeout_s):
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
            self._counts.skipped += len(keys)
            lookup.found.set_result([None] * len(keys))
        else:
            self._waiting.put_nowait(lookup)
        return lookup

    def _result(self, lookup: _Lookup) -> list[bytes | None]:
        if lookup.found.cancelled():
            self._counts.late += len(lookup.keys)
            return [None] * len(lookup.keys)
        return lookup.found.result()

    def _is_worth(self, timeout_s: float) -> bool:
        """Whether an answer is likely to come in that time."""
        if not self._is_asking or timeout_s < max(_LEAST_S, self._hoped_s):
            return False
        return self._sent_s is None or time.monotonic() - self._sent_s < _IN_TIME_S

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
            async with asyncio.timeout(_FIRST_LOOK_S):
                await self._on_first_connection(self._connection)
            self._on_first_connection = None
        self._took_s.clear()
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
        try:
            async with asyncio.timeout(_TRY_EVERY_S):
                lookups = [await self._waiting.get()]
        except TimeoutError:
            return []
        count = len(lookups[0].keys)
        while count < _KEYS_AT_ONCE and not self._waiting.empty():
            lookups.append(self._waiting.get_nowait())
            count += len(lookups[-1].keys)
        return [lookup for lookup in lookups if not lookup.found.done()]

    async def _exchange(self, lookups: list[_Lookup]) -> None:
        """Ask for all of them at once, or for nobody's key as a trial. Raises whatever goes wrong."""
        keys = [key for lookup in lookups for key in lookup.keys] or [_NOBODYS_KEY]
        self._sent_s = began_s = time.monotonic()
        try:
            async with asyncio.timeout(_HANGS_S):
                values = await self._connection.get_many([name_of(key) for key in keys])
        except BaseException:
            self._give_up(lookups)
            raise
        finally:
            self._sent_s = None
        self._judge(time.monotonic() - began_s, size=sum(len(value) for value in values if value is not None))
        rest = iter(values)
        are_sound = [self._answer(lookup, [next(rest) for _ in lookup.keys]) for lookup in lookups]
        if not all(are_sound):
            await self._require_step()

    async def _require_step(self) -> None:
        async with asyncio.timeout(_HANGS_S):
            if not await self._connection.is_in_step():
                raise _OutOfStep

    def _answer(self, lookup: _Lookup, framed: list[bytes | None]) -> bool:
        """Whether everything that was there was whole."""
        if lookup.found.done():  # whoever asked has left
            return True
        values = [None if value is None else unframe(key, value) for key, value in zip(lookup.keys, framed, strict=True)]
        misses, hits = framed.count(None), len(values) - values.count(None)
        damaged = len(values) - hits - misses
        self._counts.hits += hits
        self._counts.misses += misses
        self._counts.damaged += damaged
        lookup.found.set_result(values)
        return not damaged

    def _judge(self, took_s: float, *, size: int) -> None:
        self._took_s.append(took_s)
        self._hoped_s = sorted(self._took_s)[len(self._took_s) // 4]
        if took_s > _LATE_S + size / _LARGE_BYTES_PER_S:
            self._failed(f"it takes {took_s * 1e3:.0f} ms to answer")
            return
        was_open = self._breaker.is_open
        self._breaker.succeeded(time.monotonic())
        if was_open and not self._breaker.is_open:
            _log.info("the shared cache at %s is back", self._connection.place)

    def _failed(self, why: str, *, is_away: bool = False) -> None:
        was_open = self._breaker.is_open
        self._breaker.failed(time.monotonic(), is_away=is_away)
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
