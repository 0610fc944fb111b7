"""Metering over a store that does what a test says, with its spill folder and log in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from enum import Enum, auto
from itertools import count

from control_plane.core.errors import StoreUnavailable
from control_plane.core.infer_call import Outcome
from control_plane.metering.domain.usage import Usage, UsageBatch, UsageEvent, UsageKey
from control_plane.metering.metering import BATCH_SUMS, Metering
from tests.aio import run_in_virtual_time
from tests.fakes.stores.usage_store import FakeUsageStore

RECOVERY_S = 60.0
"""Longer than the longest back-off between two attempts."""
MIDNIGHT_S = 1_700_006_400.0
DAY, NEXT_DAY = "2023-11-14", "2023-11-15"


def add(metering: Metering, numbers: Iterable[int]) -> None:
    """Add a request to each of these models."""
    for number in numbers:
        metering.add("t", str(number), Outcome.ANSWERED, 1, 1, 1.0, False)


def old_batch(number: int) -> UsageBatch:
    """A batch that an earlier process has spilled."""
    return UsageBatch(f"old{number}", ((UsageKey(DAY, "t", str(number)), Usage(requests=1)),))


class Does(Enum):
    """How the fake store reacts to a batch."""

    TAKE = auto()
    TAKE_LATE = auto()
    TAKE_AND_ANSWER_LATE = auto()
    REFUSE = auto()
    FILL = auto()
    """Refuse, since the disk is full."""
    TAKE_AND_FAIL = auto()
    HANG = auto()
    TAKE_AND_HANG = auto()
    BREAK = auto()
    """Raise what a store with a defect raises."""


class ScriptedStore(FakeUsageStore):
    """Fake usage store: reacts to the first batches as scripted, then accepts all."""

    def __init__(self, script: Iterable[Does] = ()) -> None:
        super().__init__()
        self.script = list(script)
        self.asked = 0
        self.takes_s = 0.0
        self._seen: dict[str, UsageBatch] = {}

    @property
    def counted(self) -> list[int]:
        """Every request's number as often as it was counted, in order."""
        sums = [each for batch in self.usage.batches.values() for each in batch.sums]
        return [int(key.model) for key, usage in sums for _ in range(usage.requests)]

    async def add(self, batch: UsageBatch) -> None:
        self.asked += 1
        does = self.script.pop(0) if self.script else Does.TAKE
        assert 0 < len(batch.sums) <= BATCH_SUMS
        assert self._seen.setdefault(batch.id, batch) == batch, "one id, two batches"
        await asyncio.sleep(3.0 if does is Does.TAKE_LATE else self.takes_s)
        if does is Does.BREAK:
            raise RuntimeError("a defect")
        if does is Does.FILL:
            raise StoreUnavailable("database or disk is full", is_full=True)
        if does is Does.REFUSE:
            raise StoreUnavailable("refused")
        if does is not Does.HANG:
            await super().add(batch)
        if does in (Does.HANG, Does.TAKE_AND_HANG):
            await asyncio.sleep(1e5)
        if does is Does.TAKE_AND_FAIL:
            raise StoreUnavailable("the answer was lost")
        if does is Does.TAKE_AND_ANSWER_LATE:
            await asyncio.sleep(3.0)


class FakeSpill:
    """Fake of `metering/ports.UsageSpill` in memory."""

    def __init__(self) -> None:
        self.kept: list[UsageBatch] = []
        self.is_full = False
        self.looked = 0

    def batches(self) -> Iterator[UsageBatch]:
        self.looked += 1
        yield from list(self.kept)

    def write(self, batch: UsageBatch) -> None:
        if self.is_full:
            raise StoreUnavailable("no space left")
        self.kept.append(batch)

    def remove(self, batch: UsageBatch) -> None:
        self.kept.remove(batch)


class FakeLog:
    def __init__(self) -> None:
        self.events: list[UsageEvent] = []

    def write(self, event: UsageEvent) -> None:
        self.events.append(event)


class Bench:
    """State that outlives a process: the store, the spill, and the ids of batches."""

    def __init__(self, *script: Does, max_sums: int = 100_000, today_s: Callable[[], float] = time.time) -> None:
        self.store, self.spill = ScriptedStore(script), FakeSpill()
        self._max_sums, self._today_s = max_sums, today_s
        self._ids = map(str, count())

    def metering(self, log: FakeLog | None = None) -> Metering:
        return Metering(
            store=self.store, spill=self.spill, max_sums=self._max_sums, log=log, new_id=lambda: next(self._ids), today_s=self._today_s
        )

    def stored(self, metering: Metering) -> dict[UsageKey, Usage]:
        """Return the store's sums after everything that waits is sent."""
        run_in_virtual_time(metering.close(1.0))
        assert metering.waiting == 0
        return self.store.usage.sums


@asynccontextmanager
async def running(metering: Metering) -> AsyncIterator[Metering]:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(metering.run())
        yield metering
        task.cancel()
