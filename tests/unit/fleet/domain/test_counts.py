from __future__ import annotations

import pytest

from control_plane.fleet.domain.counts import LOAD_BUCKETS_S, FleetCounts
from control_plane.fleet.domain.event import FleetEvent, FleetEventKind
from control_plane.models.domain.description import Tier


def event(kind: FleetEventKind, seconds: float = 0.0) -> FleetEvent:
    return FleetEvent(1e9, kind, "m", "s0", "", seconds)


def test_events_by_kind_and_loads_with_their_time() -> None:
    counts = FleetCounts()
    for each in (event(FleetEventKind.LOADED, 0.3), event(FleetEventKind.LOADED, 1000.0), event(FleetEventKind.EVICTED)):
        counts.count_event(each)
    assert counts.events == {FleetEventKind.LOADED: 2, FleetEventKind.EVICTED: 1}
    assert counts.loads.seconds == pytest.approx(1000.3)
    assert counts.loads.buckets == [0, 0, 1, *[0] * 9, 1]
    assert len(counts.loads.buckets) == len(LOAD_BUCKETS_S) + 1


def test_an_administrator_s_reload_took_no_time_that_is_known() -> None:
    counts = FleetCounts()
    counts.count_event(event(FleetEventKind.LOADED))
    assert (counts.events[FleetEventKind.LOADED], sum(counts.loads.buckets)) == (1, 0)


def test_moves_by_way() -> None:
    counts = FleetCounts()
    for size in (10, 20):
        counts.moved("m", source=Tier.COLD, target=Tier.WARM, size_bytes=size, took_s=1.5)
    counts.move_failed("m", source=Tier.WARM, target=Tier.HOT)
    found = {way: (each.count, each.failed, each.bytes, each.seconds) for way, each in counts.moves.items()}
    assert found == {(Tier.COLD, Tier.WARM): (2, 0, 30, 3.0), (Tier.WARM, Tier.HOT): (0, 1, 0, 0.0)}
