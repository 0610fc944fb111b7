"""`tidegate regions`: lists the other regions that a running tidegate knows, over the admin API."""

from __future__ import annotations

from typing import Any

from control_plane.cli.common.options import AdminUrlOption, StateDirOption, admin_client
from control_plane.cli.common.output import Shape, ShapeOption, listed, print_found
from control_plane.cli.common.printing import print_table

_COLUMNS = ("region", "address", "well", "round trip", "full for", "sent", "answered", "refused", "reason")


def regions(output: ShapeOption = Shape.TABLE, admin_url: AdminUrlOption = None, state_dir: StateDirOption = None) -> None:
    """List the other regions: whether they are well, how far away, and how many requests were sent there."""
    found = admin_client(state_dir, admin_url).ask("GET", "regions")
    print_found(found, output, lambda: print_table(_COLUMNS, map(_row, listed(found))))


def _row(region: dict[str, Any]) -> list[object]:
    round_trip_ms, full_for_s = region["round_trip_ms"], region["full_for_s"]
    return [
        region["name"],
        region["address"],
        "yes" if region["is_well"] else "no",
        None if round_trip_ms is None else f"{round_trip_ms:g} ms",
        f"{full_for_s:g} s" if full_for_s else None,
        region["sent"],
        region["answered"],
        region["refused"],
        region["reason"] or None,
    ]
