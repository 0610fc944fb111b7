"""HTTP/1.1 messages as values, and the rules by which a request travels on to Triton.

Called by the HTTP front door and by the HTTP adapter; knows no sockets. Hop-by-hop fields: RFC 9110, 7.6.1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from control_plane.core.errors import InvalidRequest
from control_plane.protocols.header_forwarding import NO_FORWARDING, HeaderForwarding

Body = bytes | bytearray
"""A large one is collected in a bytearray and never copied."""

_SMALL_BYTES = 64 * 1024
"""Up to this size, joining a head and its body is cheaper than writing them one after the other."""

Headers = list[tuple[bytes, bytes]]
"""Field names keep the sender's case: Triton's header forwarding shows it to models."""

_NEVER_HOP_BY_HOP = frozenset((b"inference-header-content-length",))
"""Says how the body is read, so a caller that lists it in `Connection` must not get it stripped after it was checked."""


@dataclass(slots=True)
class _Derived:
    """What was worked out from a head, kept for the requests that share it."""

    fields: dict[bytes, list[bytes]] | None = None
    """Values by lower-case name."""
    upstream_host: bytes = b""
    upstream_head: bytes = b""
    aimed: HttpRequest | None = None
    """The same head for another target."""
    admitted: object = None
    """The door's: who sends it, and what it asks for."""


@dataclass(slots=True)
class HttpRequest:
    """One request with its whole body, de-chunked. Its head is not changed once it is made."""

    method: bytes
    target: bytes
    headers: Headers = field(default_factory=list)
    body: Body = b""
    peer_is_local: bool = False
    """Whether it came from this machine."""
    peer: str = ""
    """The address it came from; empty on a Unix socket."""
    takes_chunks: bool = True
    """False of an HTTP/1.0 client, which takes an answer of unknown length to end with the connection."""
    derived: _Derived = field(default_factory=_Derived, compare=False, repr=False)

    def with_body(self, body: Body) -> HttpRequest:
        """The next request of a client that repeats its head, as one that keeps its connection does."""
        return HttpRequest(self.method, self.target, self.headers, body, self.peer_is_local, self.peer, self.takes_chunks, self.derived)

    def with_target(self, target: bytes) -> HttpRequest:
        """The same request for something else."""
        aimed = self.derived.aimed
        if aimed is None or aimed.target != target:
            aimed = HttpRequest(self.method, target, self.headers, b"", self.peer_is_local, self.peer, self.takes_chunks)
            self.derived.aimed = aimed
        return aimed.with_body(self.body)

    def header(self, lowercase_name: bytes) -> bytes | None:
        """The first field of that name, or None."""
        values = self._fields().get(lowercase_name)
        return values[0] if values else None

    def text_header(self, lowercase_name: bytes) -> str | None:
        """All fields of that name as one text, or None."""
        values = self._fields().get(lowercase_name)
        return b", ".join(values).decode("latin-1") if values else None

    @property
    def request_id(self) -> str:
        """Its field `x-request-id`, or empty."""
        return self.text_header(b"x-request-id") or ""

    @property
    def content_length(self) -> int:
        """As its head says, which may be all that has come."""
        return int(self.header(b"content-length") or 0)

    def single_header(self, lowercase_name: bytes) -> bytes | None:
        """The only field of that name. Raises InvalidRequest when there are several: two parsers may take different ones."""
        values = self._fields().get(lowercase_name)
        if values is None:
            return None
        if len(values) > 1:
            raise InvalidRequest(f"the header {lowercase_name.decode()} occurs {len(values)} times")
        return values[0]

    def _fields(self) -> dict[bytes, list[bytes]]:
        fields = self.derived.fields
        if fields is None:
            fields = self.derived.fields = {}
            for name, value in self.headers:
                fields.setdefault(name.lower(), []).append(value)
        return fields


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """One answer as it goes out: `head` ends with the empty line and frames `body` by Content-Length."""

    status: int
    head: bytes
    body: Body


_CHUNKED = re.compile(rb"\r\nTransfer-Encoding:[^\r\n]*\r\n", re.IGNORECASE)

_REASONS = {
    200: b"OK",
    400: b"Bad Request",
    401: b"Unauthorized",
    403: b"Forbidden",
    404: b"Not Found",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    409: b"Conflict",
    413: b"Content Too Large",
    422: b"Unprocessable Content",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    502: b"Bad Gateway",
    503: b"Service Unavailable",
    504: b"Gateway Timeout",
}


def make_answer(status: int, body: bytes = b"", *, content_type: bytes = b"application/json", headers: Headers | None = None) -> HttpAnswer:
    """An answer of our own, framed by Content-Length."""
    lines = [b"HTTP/1.1 %d %b" % (status, _REASONS[status]), b"Content-Type: " + content_type, b"Content-Length: %d" % len(body)]
    lines += [name + b": " + value for name, value in headers or ()]
    return HttpAnswer(status, b"\r\n".join(lines) + b"\r\n\r\n", body)


def with_header(answer: HttpAnswer, line: bytes) -> HttpAnswer:
    """The same answer with one more header line."""
    return HttpAnswer(answer.status, answer.head[:-2] + line + b"\r\n\r\n", answer.body)


def no_content(headers: Headers) -> HttpAnswer:
    """A 204, which has neither a body nor a length."""
    lines = [b"HTTP/1.1 204 No Content", *(name + b": " + value for name, value in headers)]
    return HttpAnswer(204, b"\r\n".join(lines) + b"\r\n\r\n", b"")


def without_chunks(head: bytes) -> bytes:
    """The head of a chunked answer for a client that reads until the end of the connection."""
    return _CHUNKED.sub(b"\r\n", head)


def upstream_pieces(request: HttpRequest, host: bytes, forwarding: HeaderForwarding = NO_FORWARDING) -> list[Body]:
    """The request as it goes to Triton: the fields of `forwarding` as they came, one unambiguous Content-Length.

    `forwarding` is the same for all requests of one head.
    """
    derived = request.derived
    if derived.upstream_host != host:
        derived.upstream_host, derived.upstream_head = host, _upstream_head(request, host, forwarding)
    if len(request.body) <= _SMALL_BYTES:
        return [b"%b%d\r\n\r\n" % (derived.upstream_head, len(request.body)) + request.body]
    return [b"%b%d\r\n\r\n" % (derived.upstream_head, len(request.body)), request.body]


def _upstream_head(request: HttpRequest, host: bytes, forwarding: HeaderForwarding) -> bytes:
    """Up to the value of Content-Length."""
    parts = [request.method, b" ", request.target, b" HTTP/1.1\r\nHost: ", host, b"\r\n"]
    listed = _named_by_connection(request)
    for name, value in request.headers:
        lowered = name.lower()
        if lowered not in listed and forwarding.passes(lowered, value):
            parts += (name, b": ", value, b"\r\n")
    return b"".join((*parts, b"Content-Length: "))


def _named_by_connection(request: HttpRequest) -> set[bytes]:
    named: set[bytes] = set()
    for name, value in request.headers:
        if name.lower() == b"connection" and value.lower() not in (b"keep-alive", b"close"):
            named.update(option.strip().lower() for option in value.split(b","))
    return named - _NEVER_HOP_BY_HOP
