"""All floods by name, and one of them as another process is asked for it."""

from __future__ import annotations

import time

from perf.floods.flooder import Flooded, flood
from perf.floods.grpc_floods import GRPC_FLOODS
from perf.floods.http_floods import HTTP_FLOODS

FLOODS = {f"{each.protocol}: {each.name}": each for each in (*HTTP_FLOODS, *GRPC_FLOODS)}


def flood_for(name: str, address: str, key: str, seconds: float) -> Flooded:
    """Flood for so long."""
    until_s = time.monotonic() + seconds
    return flood(FLOODS[name], address, key, lambda _: time.monotonic() < until_s)
