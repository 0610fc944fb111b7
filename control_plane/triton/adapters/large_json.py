"""Requests whose JSON is so large that Triton's parsing of it delays others.

Triton's HTTP threads parse JSON themselves, and a thread serves several connections. `triton/adapters/http` therefore
sends large JSON on one connection, and keeps others away from those that seem to share its thread.
"""

from __future__ import annotations

from control_plane.protocols.http1 import HttpRequest

LARGE_JSON_BYTES = 256 * 1024
"""JSON from which on Triton's parsing of it holds up the other connections of its HTTP thread: 20 ms for each MB."""

HELD_UP_S = 0.02
"""An answer beside such a request that took so long may have waited for its parsing."""


def has_large_json(request: HttpRequest) -> bool:
    """Whether much of a large body is JSON: binary data, which Triton need not parse, follows it."""
    json_bytes = request.header(b"inference-header-content-length")
    return json_bytes is None or not json_bytes.isdigit() or int(json_bytes) > LARGE_JSON_BYTES
