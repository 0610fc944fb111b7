"""Answer to `http://` on a TLS port, as nginx gives it: a plain 400 that says what to do, instead of an empty reply.

`host/tls` makes its servers' contexts of these. The loop's TLS hands a context two buffers, what has come and what is to go, so that
a connection's first byte tells plain text: a handshake begins with 22, the method of a request with a capital letter (RFC 8446 5.1,
RFC 9110 9). gRPC without TLS begins with `PRI` and gets the same, which its clients report as an HTTP/1.1 server's 400.
"""

from __future__ import annotations

import ssl
from typing import Any

_LETTERS = range(ord("A"), ord("Z") + 1)
_MOST_DROPPED_BYTES = 256 * 1024
"""Of the request's rest: to end the connection at once would take the answer from a client that still sends."""

_TEXT = b"this port speaks TLS: use https:// (for gRPC, a channel with TLS)\n"
_ANSWER = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (
    len(_TEXT),
    _TEXT,
)


class _Connection(ssl.SSLObject):
    """TLS of one connection, which is told from plain text when its first bytes have come."""

    received: ssl.MemoryBIO
    to_send: ssl.MemoryBIO
    _has_begun = False
    _dropped_bytes: int | None = None
    """Since plain text was answered."""

    def do_handshake(self) -> None:
        """As for any; a client that was answered is waited for, as for a handshake that takes long."""
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
            raise ssl.SSLWantReadError
        self.received.write(first)

    def _drop(self) -> None:
        assert self._dropped_bytes is not None
        self._dropped_bytes += len(self.received.read())
        if self._dropped_bytes <= _MOST_DROPPED_BYTES:
            raise ssl.SSLWantReadError
        raise ssl.SSLError("plain text on a TLS port")


class AnsweringContext(ssl.SSLContext):
    """A server's context whose connections answer plain HTTP."""

    sslobject_class = _Connection

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **options: Any) -> ssl.SSLObject:
        connection = super().wrap_bio(incoming, outgoing, *args, **options)
        assert isinstance(connection, _Connection)
        connection.received, connection.to_send = incoming, outgoing
        return connection
