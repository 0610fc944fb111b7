from __future__ import annotations

import asyncio

import pytest

from control_plane.core.errors import StoreUnavailable
from control_plane.events import relay as module
from control_plane.events.domain.stream import Stream
from control_plane.events.relay import EventRelay
from tests.aio import in_background
from tests.fakes.stores.event_streams import FakeEventStreams, FakeLog

USAGE = Stream.USAGE


class Bench:
    def __init__(self) -> None:
        self.streams, self.log, self.now_s = FakeEventStreams(), FakeLog(), 0.0
        self.relay = self.another()

    def another(self) -> EventRelay:
        return EventRelay(self.streams, {USAGE: self.log}, now_s=lambda: self.now_s)

    async def publish(self, relay: EventRelay | None = None) -> None:
        while await (relay or self.relay).step(USAGE, self.log):
            pass

    @property
    def published(self) -> list[str]:
        return [each.decode() for each in self.streams.events[USAGE]]


async def test_all_that_is_in_the_log_is_published_in_its_order() -> None:
    bench = Bench()
    bench.log.add(2 * module.PAGE + 1)
    await bench.publish()
    bench.log.add()
    await bench.publish()
    await bench.publish()
    assert bench.published == [f"a{number}" for number in range(1, 2 * module.PAGE + 3)]
    assert bench.relay.published[USAGE] == 2 * module.PAGE + 2


async def test_two_gateways_publish_each_event_once() -> None:
    bench = Bench()
    other = bench.another()
    bench.log.add(1000)
    await asyncio.gather(bench.publish(), bench.publish(other))
    assert bench.published == [f"a{number}" for number in range(1, 1001)]
    assert bench.relay.published[USAGE] + other.published[USAGE] == 1000


async def test_an_answer_that_is_lost_costs_no_event_and_sends_none_twice() -> None:
    bench = Bench()
    bench.log.add(3)
    bench.streams.loses_answers = True
    with pytest.raises(StoreUnavailable):
        await bench.publish()
    bench.streams.loses_answers = False
    bench.log.add()
    await bench.publish(bench.another())
    assert bench.published == ["a1", "a2", "a3", "a4"]


async def test_streams_that_forgot_are_told_all_that_the_log_still_has() -> None:
    bench = Bench()
    bench.log.add(3)
    await bench.publish()
    bench.streams.events.clear()
    bench.streams.positions.clear()
    bench.log.add()
    await bench.publish()
    assert bench.published == ["a1", "a2", "a3", "a4"]


async def test_what_the_log_removed_before_it_was_published_is_counted() -> None:
    bench = Bench()
    bench.log.add(2)
    await bench.publish()
    bench.log.add(10)
    del bench.log.events[:7]
    await bench.publish()
    assert bench.published == ["a1", "a2", "a8", "a9", "a10", "a11", "a12"]
    assert bench.relay.lost[USAGE] == 5


async def test_what_was_removed_before_the_first_subscription_is_no_loss() -> None:
    bench = Bench()
    bench.log.add(5)
    del bench.log.events[:3]
    await bench.publish()
    assert (bench.published, bench.relay.lost[USAGE]) == (["a4", "a5"], 0)


@pytest.mark.parametrize("count", [1, 2, 3, 9], ids=["shorter", "shorter-by-one", "as-long", "longer"])
async def test_a_log_that_was_begun_anew_is_published_from_its_first_event_on(count: int) -> None:
    bench = Bench()
    bench.log.add(3)
    await bench.publish()
    bench.log.events, bench.log.name = [], "b"
    bench.log.add(count)
    await bench.publish()
    assert bench.published == ["a1", "a2", "a3", *(f"b{number}" for number in range(1, count + 1))]
    assert bench.relay.lost[USAGE] == 0


async def test_a_log_that_is_empty_now_waits_for_its_first_event() -> None:
    bench = Bench()
    bench.log.add(3)
    await bench.publish()
    bench.log.events = []
    await bench.publish()
    assert bench.published == ["a1", "a2", "a3"]


async def test_an_outage_is_told_once_and_lasts_no_longer_than_it_does(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PERIOD_S", 0.001)
    monkeypatch.setattr(module, "_RETRY_S", 0.001)
    caplog.set_level("INFO")
    bench = Bench()
    bench.streams.is_away = True
    bench.log.add()
    async with in_background(bench.relay.run()), asyncio.timeout(20):
        await asyncio.sleep(0.05)
        bench.now_s = 60.0
        assert bench.relay.behind_s == pytest.approx(60.0, abs=0.1)
        bench.streams.is_away = False
        while not bench.published or bench.relay.behind_s:
            await asyncio.sleep(0.001)
    assert caplog.text.count("are not published for now") == 1
    assert caplog.text.count("are published again") == 1
