"""Parser of the body behind a head that offers to upgrade the connection.

Such an offer is passed over here (RFC 9110, 7.8): Java's HTTP client makes it with every request over plain TCP
(`Upgrade: h2c`). httptools takes such a request to end with its head, so its body is left to a parser of its own. Used by
`frontends/http/requests/reader`.
"""

from __future__ import annotations

from typing import Any, Protocol

import httptools

from control_plane.protocols.http1 import Headers

_FRAMING = frozenset((b"content-length", b"transfer-encoding"))


class BodyReader(Protocol):
    """Callbacks of httptools for a body."""

    def on_body(self, body: bytes) -> None: ...

    def on_message_complete(self) -> None: ...


class _BodyOnly:
    """The callbacks of a reader that is told nothing of the head, nor of a trailer."""

    def __init__(self, reader: BodyReader) -> None:
        self.on_body, self.on_message_complete = reader.on_body, reader.on_message_complete


def body_parser(reader: BodyReader) -> Any:
    """Make a parser that tells `reader` of bodies alone; it is to be fed a `body_head` first."""
    return httptools.HttpRequestParser(_BodyOnly(reader))


def body_head(headers: Headers) -> bytes:
    """Return a head with those of these fields that frame a body, behind which nothing more may come."""
    framing = b"".join([b"%b: %b\r\n" % field for field in headers if field[0].lower() in _FRAMING])
    return b"POST / HTTP/1.1\r\nConnection: close\r\n%b\r\n" % framing
