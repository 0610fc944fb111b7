from __future__ import annotations

from fastapi import FastAPI
from fastapi.testclient import TestClient

from control_plane.admin.errors import answer_errors
from control_plane.admin.paths.regions import add_region_path
from control_plane.core.endpoints import TcpAddress
from control_plane.regions.domain.region import Region
from control_plane.regions.regions import Regions
from control_plane.telemetry.request_counts import RegionCount
from tests.unit.regions.regions_bench import Link


def asked(regions: Regions | None, *counts: RegionCount) -> tuple[int, object]:
    app = FastAPI()
    answer_errors(app)
    add_region_path(app, regions, lambda: counts)
    response = TestClient(app).get("/regions")
    return response.status_code, response.json()


def test_each_is_shown_with_what_became_of_its_requests() -> None:
    regions = Regions(
        [(Region(name, TcpAddress(f"{name}.example", 443), TcpAddress(name, 2)), Link()) for name in ("us", "ap")], now_s=lambda: 5.0
    )
    us, ap = regions.standings
    us.heard(0.0812)
    us.window.refused(4.99)
    ap.failed("it says nothing")
    counts = (RegionCount("us", "answered", 7), RegionCount("us", "full", 2), RegionCount("us", "lost", 1))
    shown = {"name": "us", "address": "us.example:443", "is_well": True, "reason": "", "round_trip_ms": 81.2, "full_for_s": 0.04}
    silent = {
        "name": "ap",
        "address": "ap.example:443",
        "is_well": False,
        "reason": "it says nothing",
        "round_trip_ms": None,
        "full_for_s": 0.0,
    }
    assert asked(regions, *counts) == (
        200,
        [shown | {"sent": 10, "answered": 7, "refused": 2}, silent | {"sent": 0, "answered": 0, "refused": 0}],
    )


def test_without_regions_it_is_said_what_makes_them() -> None:
    status, body = asked(None)
    assert status == 404
    assert "--regions-file" in str(body)
