"""JSON that Triton parses for so long that the other connections of the same HTTP thread wait: some 10 to 20 ms for each MB.

Used by `triton/adapters/http/client`, which keeps the requests of others away from such a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from control_plane.protocols.http1 import HttpRequest

LARGE_JSON_BYTES = 256 * 1024
"""JSON from which on the others are kept away."""

HELD_UP_S = 0.02
"""An answer beside such a request that took so long may have waited for its parsing."""

_LONG_JSON_BYTES = 2**20
"""JSON that is parsed for long enough to open connections meanwhile."""

_READ_S_PER_BYTE = 1.5e-9
"""More than Triton takes to read what has been written, and a tenth of what it takes to parse that."""


def has_large_json(request: HttpRequest) -> bool:
    """Whether much of a large body is JSON: binary data, which Triton need not parse, follows it."""
    json_bytes = request.header(b"inference-header-content-length")
    return json_bytes is None or not json_bytes.isdigit() or int(json_bytes) > LARGE_JSON_BYTES


async def comes_to_be_parsed(body_bytes: int, is_being_written: Callable[[], bool], answer: asyncio.Future[object]) -> bool:
    """Wait until a request's body has been written and Triton has had the time to read it; whether it parses the body
    now. False where that takes too little time to be met, and where the answer has come."""
    if body_bytes < _LONG_JSON_BYTES:
        return False
    is_written = False
    while not (is_written or answer.done()):
        is_written = not is_being_written()
        await asyncio.wait((answer,), timeout=_READ_S_PER_BYTE * body_bytes)
    return not answer.done()
