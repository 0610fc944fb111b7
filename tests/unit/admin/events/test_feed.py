"""The feed of events: order, ids, readers that are slow, and what is published."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from dataclasses import replace

import pytest

from control_plane.admin.events.feed import MAX_EVENTS, MAX_READERS, MAX_READERS_OF_ONE, EventFeed, EventSources
from control_plane.admin.paths.events import EventStream
from control_plane.core.errors import Overloaded
from control_plane.fleet.domain.event import FleetEvent, FleetEventKind
from control_plane.objects.domain.rollout import Event, Phase, Rollout, Step


def feed_of(count: int) -> EventFeed:
    feed = EventFeed(today_s=lambda: 1e9)
    for number in range(1, count + 1):
        feed.publish("test", {"n": number})
    return feed


def numbers(feed: EventFeed, **how: object) -> tuple[list[int], bool]:
    reader = feed.read("me", **how)  # type: ignore[arg-type]
    reader.close()
    return [event.number for event in reader.take()], reader.has_gap


class TestWhereAReaderBegins:
    def test_at_the_next_event_unless_it_asks_for_those_that_are_kept(self) -> None:
        feed = feed_of(3)
        assert numbers(feed) == ([], False)
        assert numbers(feed, backlog=True) == ([1, 2, 3], False)

    def test_after_the_event_that_it_names(self) -> None:
        feed = feed_of(5)
        assert numbers(feed, after=feed.id_of(3)) == ([4, 5], False)
        assert numbers(feed, after=feed.id_of(5)) == ([], False)

    def test_where_events_are_gone_it_is_told(self) -> None:
        feed = feed_of(MAX_EVENTS + 10)
        kept = list(range(11, MAX_EVENTS + 11))
        assert numbers(feed, after=feed.id_of(10)) == (kept, False)
        assert numbers(feed, after=feed.id_of(9)) == (kept, True)

    @pytest.mark.parametrize("after", ["x", "00000000-2", "-", "3", "\x00", "12345678-" + "9" * 400])
    def test_an_id_of_another_process_or_none_is_a_gap(self, after: str) -> None:
        assert numbers(feed_of(2), after=after) == ([1, 2], True)

    def test_an_id_that_is_still_to_come_is_a_gap(self) -> None:
        feed = feed_of(2)
        assert numbers(feed, after=feed.id_of(3)) == ([1, 2], True)


class TestBounds:
    def test_of_one_caller_and_of_all(self) -> None:
        feed = feed_of(0)
        mine = [feed.read("me") for _ in range(MAX_READERS_OF_ONE)]
        with pytest.raises(Overloaded, match="for one caller"):
            feed.read("me")
        others = [feed.read(f"other {number}") for number in range(MAX_READERS - MAX_READERS_OF_ONE)]
        with pytest.raises(Overloaded):
            feed.read("one more")
        for reader in (*mine, *others, *mine):
            reader.close()
        assert numbers(feed) == ([], False)

    async def test_a_slow_reader_is_dropped_and_can_go_on(self) -> None:
        feed = feed_of(0)
        stream = EventStream(feed, feed.read("me"), follow=True)
        assert await stream.receive() == b"retry: 2000\n\n"
        for number in range(MAX_EVENTS + 1):
            feed.publish("test", {"n": number})
        dropped = await stream.receive()
        assert dropped is not None
        assert dropped.startswith(b"event: dropped\n")
        assert await stream.receive() is None

    async def test_one_that_keeps_up_gets_each_event_once(self) -> None:
        feed = feed_of(0)
        reader = feed.read("me")
        seen = []
        for number in range(3 * MAX_EVENTS):
            feed.publish("test", {"n": number})
            if number % 900 == 0:
                seen += [event.number for event in reader.take()]
        seen += [event.number for event in reader.take()]
        assert seen == list(range(1, 3 * MAX_EVENTS + 1))


class TestStream:
    async def test_events_as_fields_of_lines(self) -> None:
        feed, reason = EventFeed(today_s=lambda: 1e9), "first\nevent: forged\n\ndata: {}\u2028"
        feed.publish("model.failed", {"model": "m", "reason": reason})
        stream = EventStream(feed, feed.read("me", backlog=True), follow=False)
        assert await stream.receive() == b"retry: 2000\n\n"
        piece = await stream.receive()
        assert piece is not None
        assert piece.decode().splitlines() == [
            f"id: {feed.id_of(1)}",
            "event: model.failed",
            "data: " + json.dumps({"at": "2001-09-09T01:46:40+00:00", "kind": "model.failed", "model": "m", "reason": reason}),
            "",
        ]
        assert await stream.receive() is None

    async def test_a_heartbeat_while_nothing_happens_and_an_event_at_once(self) -> None:
        feed = feed_of(0)
        stream = EventStream(feed, feed.read("me"), follow=True, heartbeat_s=0.05)
        await stream.receive()
        assert await stream.receive() == b":\n\n"
        waiting = EventStream(feed, feed.read("me"), follow=True, heartbeat_s=30)
        await waiting.receive()
        async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
            task = tasks.create_task(waiting.receive())
            await asyncio.sleep(0)
            feed.publish("test", {})
        assert b"event: test" in (task.result() or b"")


def fleet_event(model: str) -> FleetEvent:
    return FleetEvent(5.0, FleetEventKind.LOADED, model, "gpu-0", "wanted", 1.5)


ROLLOUT = Rollout("r", "0" * 32, "v2", "v1", (Step(100, 1, 0.0),), events=(Event(1.0, "began", 100, "me"),))


class TestSources:
    def test_what_the_fleet_does_from_now_on(self) -> None:
        events = deque([fleet_event("before")], maxlen=3)
        feed = feed_of(0)
        sources = EventSources(feed, fleet=lambda: events)
        sources.look()
        assert feed.since(0) == []
        events += [fleet_event("a"), fleet_event("b")]
        sources.look()
        sources.look()
        assert [(each.kind, each.at_s, each.fields["model"]) for each in feed.since(0)] == [
            ("fleet.loaded", 5.0, "a"),
            ("fleet.loaded", 5.0, "b"),
        ]
        events += [fleet_event(name) for name in "cdef"]  # more than it keeps: "c" is lost, and the rest told
        sources.look()
        assert [each.fields["model"] for each in feed.since(3)] == ["d", "e", "f"]
        assert feed.since(3)[0].fields == {"model": "d", "server": "gpu-0", "reason": "wanted", "seconds": 1.5}

    def test_each_step_of_a_rollout_and_one_that_begins_later(self) -> None:
        known = [ROLLOUT]
        feed = feed_of(0)
        sources = EventSources(feed, rollouts=lambda: known)
        sources.look()
        assert feed.since(0) == [], "what was done before is no news"
        steps = (*ROLLOUT.events, Event(2.0, "step 2", 500), Event(3.0, "rolled back: faults", 0))
        known[0] = replace(ROLLOUT, phase=Phase.ROLLED_BACK, events=steps, reason="faults")
        known.append(replace(ROLLOUT, route="s"))
        sources.look()
        sources.look()
        told = [(each.kind, each.at_s, each.fields["route"], each.fields["what"]) for each in feed.since(0)]
        assert told == [
            ("rollout.rolled_back", 2.0, "r", "step 2"),
            ("rollout.rolled_back", 3.0, "r", "rolled back: faults"),
            ("rollout.canary", 1.0, "s", "began"),
        ]
