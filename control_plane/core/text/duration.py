"""Durations as people write them on the command line: `30s`, `15m`, `24h`, `90d`."""

from __future__ import annotations

import re

from control_plane.core.errors import InvalidRequest

_DURATION = re.compile("([0-9]{1,9})([smhd])")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def parse_duration_s(text: str) -> float:
    """Read `30s`, `15m`, `24h` or `90d`. Raises InvalidRequest."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise InvalidRequest(f"duration {text[:40]!r}: expected a number and a unit, such as 30s, 15m, 24h or 90d")
    number, unit = match.groups()
    return int(number) * _SECONDS[unit]
