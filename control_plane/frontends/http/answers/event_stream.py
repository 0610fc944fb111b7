"""Encoder of server-sent events (HTML Living Standard, 9.2), for the gateway's events (`admin/paths/events`) and a job's
(`frontends/jobs/events`).
"""

from __future__ import annotations

HEARTBEAT_S = 15.0
"""Proxies close what is silent for a minute, some for half of one."""
HEARTBEAT = b":\n\n"
RETRY = b"retry: 2000\n\n"
"""How long clients are asked to wait before they connect again."""
_FIELDS = (b"Content-Type: text/event-stream", b"Cache-Control: no-store", b"X-Accel-Buffering: no", b"Transfer-Encoding: chunked")
HEAD = b"\r\n".join((b"HTTP/1.1 200 OK", *_FIELDS, b"", b""))


def render_event(event: str, data: bytes, *, id: str = "") -> bytes:  # noqa: A002
    """Render an event; `data` is JSON, which escapes line ends, as they would end the field."""
    number = f"id: {id}\n" if id else ""
    return f"{number}event: {event}\ndata: ".encode() + data + b"\n\n"
