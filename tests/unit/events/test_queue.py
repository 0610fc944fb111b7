from __future__ import annotations

import asyncio

import pytest

from control_plane.events import queue as module
from control_plane.events.domain.stream import Stream
from control_plane.events.queue import EventQueue
from tests.aio import in_background
from tests.fakes.stores.event_streams import FakeEventStreams

STREAM = Stream.REQUESTS


class Bench:
    def __init__(self, most: int = 1000) -> None:
        self.streams = FakeEventStreams()
        self.queue = EventQueue[int](self.streams, STREAM, lambda number: b"%d" % number, most=most)

    @property
    def published(self) -> list[int]:
        return [int(each) for each in self.streams.events[STREAM]]

    async def running(self, until: int) -> None:
        """Run until so many are published."""
        async with in_background(self.queue.run()), asyncio.timeout(20):
            while len(self.published) < until:
                await asyncio.sleep(0.001)


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PERIOD_S", 0.001)
    monkeypatch.setattr(module, "_RETRY_S", 0.001)


async def test_events_are_published_in_their_order() -> None:
    bench = Bench()
    for number in range(2 * module.AT_ONCE + 1):
        bench.queue.write(number)
    await bench.running(2 * module.AT_ONCE + 1)
    assert bench.published == list(range(2 * module.AT_ONCE + 1))
    assert (bench.queue.published, bench.queue.dropped) == (2 * module.AT_ONCE + 1, 0)


async def test_while_the_streams_are_away_only_so_many_wait_and_the_rest_is_counted() -> None:
    bench = Bench(most=10)
    bench.streams.is_away = True
    async with in_background(bench.queue.run()):
        for number in range(1000):
            bench.queue.write(number)
        await asyncio.sleep(0.02)
    assert bench.queue.dropped == 990
    bench.streams.is_away = False
    await bench.running(10)
    assert bench.published == list(range(10))


async def test_an_answer_that_is_lost_loses_no_event() -> None:
    bench = Bench()
    bench.queue.write(1)
    bench.streams.loses_answers = True
    await bench.running(2)
    assert set(bench.published) == {1}  # sent again, with the same id


async def test_one_that_cannot_be_encoded_takes_none_of_the_later_ones_with_it() -> None:
    bench = Bench()
    bench.queue = EventQueue[int](bench.streams, STREAM, lambda number: b"%d" % (number // (number - 1)))
    bench.queue.write(1)
    bench.queue.write(2)
    await bench.running(1)
    assert bench.published == [2]
    assert bench.queue.dropped == 1


@pytest.mark.parametrize("is_away", [False, True], ids=["there", "away"])
async def test_what_waits_at_the_end_is_published_or_counted(is_away: bool) -> None:
    bench = Bench()
    bench.streams.is_away = is_away
    for number in range(5):
        bench.queue.write(number)
    await bench.queue.close(1.0)
    assert (bench.queue.published, bench.queue.dropped) == ((0, 5) if is_away else (5, 0))
