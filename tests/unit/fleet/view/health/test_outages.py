from __future__ import annotations

import pytest

from control_plane.fleet.domain.counts import FleetCounts
from control_plane.fleet.domain.event import FleetEventKind
from control_plane.fleet.domain.fleet import Server
from control_plane.fleet.view.events import FleetEvents
from control_plane.fleet.view.health.outages import Outages

SERVER = Server("s0", 1)


class Clock:
    at_s = 100.0


class Bench:
    """Record of outages by a clock that a test sets, with the events that it has told."""

    def __init__(self) -> None:
        self.clock, self.counts = Clock(), FleetCounts()
        self.events = FleetEvents(self.counts, logs=False)
        self.outages = Outages(self.events, self.counts, now_s=lambda: self.clock.at_s)

    def told(self) -> list[tuple[FleetEventKind, str, float]]:
        return [(event.kind, event.reason, event.seconds) for event in self.events.latest]


def test_a_server_that_is_lost_again_before_it_is_back_is_told_of_once() -> None:
    bench = Bench()
    bench.outages.begin(SERVER, "it crashed")
    bench.clock.at_s += 1.5
    bench.outages.begin(SERVER, "it crashed again")
    bench.clock.at_s += 1.0
    bench.outages.end("s0")
    assert bench.told() == [(FleetEventKind.DOWN, "it crashed", 0.0), (FleetEventKind.UP, "", 2.5)]
    assert bench.counts.events[FleetEventKind.LOST] == 0


@pytest.mark.parametrize("has_left", [False, True])
def test_a_server_that_was_not_lost_or_has_left_since_is_not_told_to_be_back(has_left: bool) -> None:
    bench = Bench()
    if has_left:
        bench.outages.begin(SERVER, "it crashed")
        bench.outages.forget("s0")
    bench.outages.end("s0")
    assert [kind for kind, *_ in bench.told()] == ([FleetEventKind.DOWN] if has_left else [])
