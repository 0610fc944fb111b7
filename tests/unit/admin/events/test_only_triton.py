"""Events of the gateway's feed about its Triton, where there is only one: that it is down, up, silent or answering."""

from __future__ import annotations

from typing import Any

from control_plane.admin.events.feed import EventFeed
from control_plane.admin.events.only_triton import OnlyTritonEvents
from control_plane.triton.servers import Servers
from tests.fakes import FakeUpstream


class Told:
    """The servers of a gateway with one Triton, and what the feed has told of it."""

    def __init__(self) -> None:
        self.now_s, feed = 100.0, EventFeed()
        self._reader = feed.read("me")
        self.servers = Servers()
        self.servers.follow(OnlyTritonEvents(feed, now_s=lambda: self.now_s))

    def take(self) -> list[tuple[str, dict[str, Any]]]:
        return [(event.kind, dict(event.fields)) for event in self._reader.take()]


def test_an_outage_is_told_once_with_its_reason_and_how_long_it_was() -> None:
    it = Told()
    it.servers.up(FakeUpstream())
    assert it.take() == [], "its start is no outage"
    it.servers.lost("Triton was killed by SIGKILL and is being restarted")
    it.servers.down("Triton has ended and is being restarted")
    it.now_s += 2.5
    it.servers.up(FakeUpstream())
    assert it.take() == [
        ("triton.down", {"reason": "Triton was killed by SIGKILL and is being restarted"}),
        ("triton.up", {"seconds": 2.5}),
    ]


def test_one_that_is_not_up_yet_is_not_down() -> None:
    it = Told()
    it.servers.down("Triton has ended and is being started again")
    it.servers.up(FakeUpstream())
    assert it.take() == []


def test_that_it_says_nothing_and_answers_again() -> None:
    it = Told()
    it.servers.up(FakeUpstream())
    it.servers.fell_silent()
    it.servers.heard()
    assert it.take() == [("triton.silent", {}), ("triton.answering", {})]
