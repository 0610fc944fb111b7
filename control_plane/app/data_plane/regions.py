"""Wires the other regions of one process: the file that lists them, and the clients of their gateways."""

from __future__ import annotations

from control_plane.core.errors import StartupError
from control_plane.regions.adapters.region_client import RegionClient
from control_plane.regions.adapters.regions_file import read_regions
from control_plane.regions.regions import Regions
from control_plane.settings import Settings


def make_regions(settings: Settings) -> Regions | None:
    """Make the other regions as the settings list them; None where this gateway has no region. Raises StartupError."""
    own, path = settings.regions.region, settings.regions.regions_file
    if not own:
        if path is not None:
            raise StartupError("--regions-file needs --region, the name of this gateway's region")
        return None
    listed = [] if path is None else read_regions(path, own=own)
    gateway = settings.gateway
    bound = gateway.max_body_bytes
    return Regions((each, RegionClient(own, each, forwards=gateway.header_forward_pattern, max_answer_bytes=bound)) for each in listed)
