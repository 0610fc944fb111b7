"""Answer to `http://` on a TLS port, as nginx gives it: a plain 400 that says what to do, instead of an empty
reply.

`host/network/tls` uses these contexts. asyncio hands a TLS context two memory buffers, received and to be sent, so
the first byte of a connection tells plain text: a TLS handshake starts with 22, an HTTP request with a
capital letter (RFC 8446 5.1, RFC 9110 9). gRPC without TLS starts with `PRI` and gets the same answer; its
clients report an HTTP/1.1 server.
"""

from __future__ import annotations

import ssl
from typing import Any

_LETTERS = range(ord("A"), ord("Z") + 1)
_MAX_DROPPED_BYTES = 256 * 1024
"""Bytes of the rest of a request that are read and dropped. Closing at once would make the kernel reset the
connection, and a client that still sends would lose the answer."""

_TEXT = b"this port speaks TLS: use https:// (for gRPC, a channel with TLS)\n"
_ANSWER = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (
    len(_TEXT),
    _TEXT,
)


class _Connection(ssl.SSLObject):
    """TLS of one connection that looks at its first bytes to detect plain text."""

    received: ssl.MemoryBIO
    to_send: ssl.MemoryBIO
    _has_begun = False
    _dropped_bytes: int | None = None
    """Bytes dropped since plain text was answered; None for a TLS client."""

    def do_handshake(self) -> None:
        """Do a step of the handshake; after the plain answer, wait for the client to close, like for a slow
        handshake.
        """
        if self._dropped_bytes is not None:
            self._drop()
        elif not self._has_begun and self.received.pending:
            self._begin()
        super().do_handshake()

    def _begin(self) -> None:
        first = self.received.read()
        self._has_begun = True
        if first[0] in _LETTERS:
            self.to_send.write(_ANSWER)
            self._dropped_bytes = len(first)
            raise ssl.SSLWantReadError  # makes the event loop send the answer and wait for more input
        self.received.write(first)  # put back: these bytes are the start of the handshake

    def _drop(self) -> None:
        assert self._dropped_bytes is not None
        self._dropped_bytes += len(self.received.read())
        if self._dropped_bytes <= _MAX_DROPPED_BYTES:
            raise ssl.SSLWantReadError
        raise ssl.SSLError("plain text on a TLS port")


class AnsweringContext(ssl.SSLContext):
    """TLS context of a server whose connections answer plain HTTP with a 400."""

    sslobject_class = _Connection

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **options: Any) -> ssl.SSLObject:
        """Make a connection that knows its buffers, which `ssl.SSLObject` does not expose."""
        connection = super().wrap_bio(incoming, outgoing, *args, **options)
        assert isinstance(connection, _Connection)
        connection.received, connection.to_send = incoming, outgoing
        return connection
