from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast

from control_plane.metering.adapters.redis_usage import RedisUsageStore
from control_plane.metering.domain.usage import Usage, UsageKey
from control_plane.storage.redis import RedisLink


class NotingDays(list[tuple[str, list[str]]]):
    """Sums of days, as Redis tells them, that note by which thread they are read."""

    read_by = 0

    def __iter__(self) -> Iterator[tuple[str, list[str]]]:
        self.read_by = threading.get_ident()
        return super().__iter__()


class AnsweringLink:
    """Link to a Redis in which every script has the same answer; it is its own client."""

    def __init__(self, answer: object) -> None:
        self.client = self
        self._answer = answer

    def register_script(self, text: str) -> Callable[..., Awaitable[object]]:
        async def script(**_: Any) -> object:
            return self._answer

        return script

    @asynccontextmanager
    async def calling(self, **_: Any) -> AsyncIterator[None]:
        yield


async def test_the_event_loop_goes_on_while_sums_are_read() -> None:
    days = NotingDays([("2026-06-01", ['requests ["a","m"]', "3", 'compute_units ["a","m"]', "1.5"])])
    store = RedisUsageStore(cast("RedisLink", AnsweringLink((days, []))))
    found = await store.totals(since_day="2026-06-01", until_day="2026-06-01")
    assert found == [(UsageKey("2026-06-01", "a", "m"), Usage(requests=3, compute_units=1.5))]
    assert days.read_by not in (0, threading.get_ident())
