"""Settings of the other regions that a gateway knows."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from control_plane.settings.fields import Group


class RegionSettings(Group):
    """Other regions, which compute what this one would refuse, and for which it does the same."""

    region: str = Field("", pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,62})?$")
    """Name of this gateway's region, such as `eu-west`, by which other regions tell its requests. Given, requests of
    other regions are computed here while there is idle room, and never sent on."""

    regions_file: Path | None = None
    """YAML list of the other regions' gateways, read at the start. Each entry has a `name`, a `url` (`https://HOST:HTTP_PORT`) and
    optionally a `grpc_url` (not given: the next port of that host), a `ca`, a `certificate` with its `key`, and a `max_share`, the
    largest part (0 to 1) of the requests asked here that may go there. Callers' own keys or tokens go with their requests, so beyond
    loopback both URLs must be `https://`. Needs `region`."""
