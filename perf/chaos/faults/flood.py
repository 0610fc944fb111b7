"""One client that sends inferences on many connections as fast as they are taken, as another process is asked for it."""

from __future__ import annotations

import time
from collections.abc import Iterator

from perf.chaos import models
from perf.floods.flood import Flood, repeated
from perf.floods.flooder import Flooded, flood

_AT_ONCE, _CONNECTIONS = 50, 100


def flood_for(address: str, key: str, seconds: float) -> Flooded:
    until_s = time.monotonic() + seconds
    return flood(Flood("inferences", "http", _inferences, connections=_CONNECTIONS), address, key, lambda _: time.monotonic() < until_s)


def _inferences(key: bytes) -> Iterator[bytes]:
    body = models.http_body(0.0, models.WORK_S)
    head = f"POST /v2/models/{models.ONCE_MODEL}/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n".encode()
    return repeated(b"", (head + (b"x-api-key: %b\r\n" % key if key else b"") + b"\r\n" + body) * _AT_ONCE)
