"""Framing of one HTTP/1.1 request's body, and the host that it was sent to, by the fields of its head (RFC 9112, 3.2 and 6).

Called by `frontends/http/requests/reader`, whose parser has checked Content-Length.
"""

from __future__ import annotations

from dataclasses import dataclass

from control_plane.core.errors import InvalidRequest
from control_plane.protocols.http1 import Headers


@dataclass(slots=True)
class Framing:
    """Fields of a head that say how long its body is, and where the request was sent."""

    body_bytes: int = 0
    is_chunked: bool = False
    wants_continue: bool = False
    """Whether the client waits for `100 Continue` before it sends the body."""
    host: bytes | None = None
    fetch_site: bytes | None = None
    """Origin of the page whose browser has sent the request (Sec-Fetch-Site)."""


def framing_of(headers: Headers) -> Framing:
    """Read the framing fields. Raises InvalidRequest: a transfer coding that is not supported, or two hosts."""
    framing, hosts = Framing(), 0
    for name, value in headers:
        match name.lower():
            case b"content-length":  # the parser guarantees that it is a number and occurs once
                framing.body_bytes = int(value)
            case b"transfer-encoding":
                framing.is_chunked = True
                if value.lower() != b"chunked":
                    raise InvalidRequest(f"Transfer-Encoding {value.decode('latin-1')!r} is not supported; chunked is")
            case b"expect":
                framing.wants_continue = value.lower() == b"100-continue"
            case b"host":
                hosts, framing.host = hosts + 1, value
            case b"sec-fetch-site":
                framing.fetch_site = value
    # A server must refuse it (RFC 9112, 3.2): the next reader might take the other one.
    if hosts > 1:
        raise InvalidRequest(f"the header host occurs {hosts} times")
    return framing
