from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from control_plane.core.endpoints import TcpAddress
from control_plane.regions.adapters.metrics import RegionMetrics
from control_plane.regions.domain.region import Region
from control_plane.regions.domain.standing import Standing
from control_plane.telemetry.request_counts import RegionCount, RequestCounts, total


def test_each_region_has_its_series_and_one_that_was_never_heard_no_round_trip() -> None:
    us, ap = (Standing(Region(name, TcpAddress(name, 1), TcpAddress(name, 2))) for name in ("us", "ap"))
    us.heard(0.25)
    worker = RequestCounts(regions=(RegionCount("us", "answered", 3), RegionCount("us", "full", 1)), guests=2)
    counts = total([worker, worker])
    registry = CollectorRegistry()
    registry.register(RegionMetrics(lambda: [us, ap], lambda: counts))
    lines = {line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")}
    assert lines == {
        'tidegate_region_up{region="us"} 1.0',
        'tidegate_region_up{region="ap"} 0.0',
        'tidegate_region_round_trip_seconds{region="us"} 0.25',
        'tidegate_region_requests_total{region="us",result="answered"} 6.0',
        'tidegate_region_requests_total{region="us",result="full"} 2.0',
        "tidegate_region_guests_total 4.0",
    }
