from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from control_plane.adapters.local_lease import LocalLease
from control_plane.services.asking import Asking
from control_plane.services.ownership import Ownership
from tests.aio import run_in_virtual_time
from tests.fakes.owner_line import FakeOwnerLine


def now_s() -> float:
    return asyncio.get_running_loop().time()


class Bench:
    """One process; it owns the fleet once its ownership runs."""

    def __init__(self, line: FakeOwnerLine) -> None:
        self.ownership = Ownership(LocalLease(), holder="x", now_s=now_s)
        self.asking = Asking(line, self.ownership, now_s=now_s)
        self.wanted: list[str] = []

    @asynccontextmanager
    async def running(self, *, owns: bool) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(self.asking.run(self.wanted.append))]
            if owns:
                running.append(tasks.create_task(self.ownership.run()))
            await asyncio.sleep(0.1)
            yield
            for task in running:
                task.cancel()


def test_who_is_not_the_owner_has_it_load() -> None:
    async def main() -> None:
        line = FakeOwnerLine()
        other, owner = Bench(line), Bench(line)
        async with other.running(owns=False), owner.running(owns=True):
            await asyncio.sleep(2.0)
            assert other.asking.ask("a")
            await asyncio.sleep(0.2)
            assert owner.wanted == ["a"]
            assert not owner.asking.ask("a"), "it loads itself"
        assert other.wanted == []

    run_in_virtual_time(main())


def test_it_asks_again_once_a_second_and_not_for_every_request() -> None:
    async def main() -> None:
        line = FakeOwnerLine()
        bench = Bench(line)
        async with bench.running(owns=False):
            for _ in range(100):
                assert bench.asking.ask("a")
                await asyncio.sleep(0.03)
        assert line.asked == ["a"] * 3

    run_in_virtual_time(main())


def test_a_store_that_was_away_is_asked_when_it_is_back() -> None:
    async def main() -> None:
        line = FakeOwnerLine(is_away=True)
        bench = Bench(line)
        async with bench.running(owns=False):
            assert bench.asking.ask("a")
            await asyncio.sleep(3.0)
            line.is_away = False
            assert bench.asking.ask("a")
            await asyncio.sleep(1.0)
            assert line.asked == ["a"]

    run_in_virtual_time(main())
