"""Codec of where a server's part of a request's time went: the header `server-timing` of an answer, over gRPC a trailer.

`inference/timed_request` writes it for callers who ask, and `profiling` reads it. Source: W3C Server Timing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

ASKED_BY = "tidegate-timing"
"""Header field, or metadata, of a request whose answer is to tell it; its value is 1."""
SERVER_TIMING = "server-timing"
TOTAL, WAIT, SERVER = "total", "wait", "server"
"""Names of durations: the gateway's time for a request, what of it the request has waited in the gateway, and what it was at a
server or on the way to one."""

_DURATION = re.compile(r"([a-z]+);dur=([0-9]{1,12}(?:\.[0-9]{1,6})?)")


def write_timing(durations_ms: Mapping[str, float], cache: str | None = None) -> str:
    """Write durations in milliseconds by name, and what the cache did."""
    told = [f"{name};dur={max(0.0, value):.3f}" for name, value in durations_ms.items()]
    return ", ".join(told if cache is None else [*told, f"cache;desc={cache}"])


def read_timing(text: str) -> dict[str, float]:
    """Read the durations by name; what is written otherwise is left out."""
    found = (_DURATION.fullmatch(each.strip()) for each in text.split(","))
    return {each[1]: float(each[2]) for each in found if each is not None}
