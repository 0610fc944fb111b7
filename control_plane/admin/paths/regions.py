"""The admin API's view of the other regions: which are well, how far away, and what became of requests sent there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import isfinite

from fastapi import FastAPI

from control_plane.admin.errors import error_responses
from control_plane.admin.schema.described import Described
from control_plane.core.errors import ErrorCode, RouteNotFound
from control_plane.regions.domain.verdict import RegionVerdict
from control_plane.regions.regions import Regions
from control_plane.telemetry.request_counts import RegionCount

_NO_REGION = "this tidegate knows no regions; --region names its own, and --regions-file lists the others"


class RegionView(Described):
    """Another region, as this gateway knows it."""

    name: str
    address: str
    """Host and port of its gateway's HTTP port."""
    is_well: bool
    """Whether its gateway answered the last probe, which is sent every second."""
    reason: str
    """Why it is not; empty while it is."""
    round_trip_ms: float | None
    """Time of a probe, a mean of the last ones; null: none was answered yet."""
    full_for_s: float
    """Seconds for which it is left alone since it had no idle room, 0 where it is not; of one process, with workers of none."""
    sent: int
    """Requests sent there since the start."""
    answered: int
    """Requests sent there that it has answered."""
    refused: int
    """Requests sent there that it refused, for want of idle room."""


def add_region_path(app: FastAPI, regions: Regions | None, sent: Callable[[], Iterable[RegionCount]]) -> None:
    """Add `/regions`; `sent` returns the counts of all processes."""

    @app.get("/regions", tags=["regions"], responses=error_responses(ErrorCode.ROUTE_NOT_FOUND))
    async def list_regions() -> list[RegionView]:
        """List the other regions, in the order of the file that names them."""
        if regions is None:
            raise RouteNotFound(_NO_REGION)
        counts = {(each.region, each.result): each.count for each in sent()}
        return [
            RegionView(
                name=name,
                address=str(standing.region.http),
                is_well=standing.is_well,
                reason=standing.why_not,
                round_trip_ms=round(standing.round_trip_s * 1e3, 1) if isfinite(standing.round_trip_s) else None,
                full_for_s=round(regions.full_for_s(standing), 3),
                sent=sum(count for (region, _), count in counts.items() if region == name),
                answered=counts.get((name, RegionVerdict.ANSWERED.value), 0),
                refused=counts.get((name, RegionVerdict.FULL.value), 0),
            )
            for standing in regions.standings
            for name in (standing.region.name,)
        ]
