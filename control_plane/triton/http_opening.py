"""Wait for the HTTP endpoint of a Triton that answers over gRPC: Triton opens it up to half a second later (server 24.10), and requests
that come in between would fail. Used wherever a Triton is reported up: embedded, adopted, attached, or on a node.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from control_plane.triton.ports import Upstream

OPENS_WITHIN_S = 5.0
"""Longest wait, for busy and slow machines. Where HTTP is switched off, or its threads are busy with loads or large bodies, each start
takes as much longer."""
_POLL_S = 0.05


async def wait_for_http(upstream: Upstream) -> None:
    """Return once a live Triton answers over HTTP as well, at the latest after `OPENS_WITHIN_S`."""
    with suppress(TimeoutError):
        async with asyncio.timeout(OPENS_WITHIN_S):
            while not await upstream.is_serving():
                await asyncio.sleep(_POLL_S)
