"""HTTP/1.1 messages as values, and the rewriting of a request for its way on to Triton.

Called by the HTTP frontend and by the HTTP adapter; knows no sockets. Hop-by-hop fields: RFC 9110, 7.6.1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Protocol

from control_plane.core.errors import InvalidRequest
from control_plane.core.infer_call import InferCall
from control_plane.core.principal import Identified
from control_plane.protocols.header_forwarding import NO_FORWARDING, TIME_LEFT_FIELD, HeaderForwarding, time_left_value

Body = bytes | bytearray
"""A large body is collected in a bytearray and never copied."""

_SMALL_BYTES = 64 * 1024
"""Up to this size, joining a head and its body is cheaper than two writes."""

Headers = list[tuple[bytes, bytes]]
"""Field names keep the sender's case, which models can see through Triton's header forwarding."""

_NEVER_HOP_BY_HOP = frozenset((b"inference-header-content-length",))
"""This field decides how the body is parsed. A caller could list it in `Connection` to have it stripped after
the checks, and Triton would parse another request than the one that was checked."""


@dataclass(slots=True)
class _Derived:
    """Memo of what was derived from a head, shared by all requests of a connection that repeat that head."""

    fields: dict[bytes, list[bytes]] | None = None
    """Field values by lower-case name."""
    upstream_host: bytes = b""
    upstream_head: bytes = b""
    upstream_bytes: int = -1
    """The size of the body that `upstream_head` was last written for: ..."""
    upstream_whole: bytes = b""
    """... and that head to its end."""
    caller: Identified | None = None
    """The caller that the head authenticates; None where that is to be asked for each request."""
    readdressed: HttpRequest | None = None
    """The request of the same head for another target, as last asked for by `with_target`."""
    head: bytes = b""
    """The head as it came, where its connection recognises repeats of it; else empty."""
    infer_json: bytes = b""
    """The JSON of the last inference request with this head, whose binary data followed it, ..."""
    infer_bytes: int = 0
    """... the size of its body, ..."""
    infer_call: InferCall | None = None
    """... and what it asked for: a body of that size that begins with the same JSON asks for the same."""


class BodyPieces(Protocol):
    """Body that is received piece by piece: `frontends/http/requests/body_stream`."""

    async def receive(self) -> Body | None:
        """Return the next piece, None after the last. Raises ControlPlaneError: the rest will not come."""


@dataclass(slots=True)
class HttpRequest:
    """One request with its whole body, de-chunked, or with a body that is still received.

    The head must not change after construction (`derived` depends on it).
    """

    method: bytes
    target: bytes
    headers: Headers = field(default_factory=list)
    body: Body = b""
    peer_is_local: bool = False
    """Whether the client is on this machine."""
    peer: str = ""
    """The client's IP address; empty on a Unix socket."""
    takes_chunks: bool = True
    """False for an HTTP/1.0 client, for which an answer of unknown length ends with the connection."""
    derived: _Derived = field(default_factory=_Derived, compare=False, repr=False)
    stream: BodyPieces | None = field(default=None, compare=False, repr=False)
    """The body, where it is received while the request is answered; `body` is empty then."""
    waited_s: float = field(default=0.0, compare=False)
    """How long it has waited for its turn to begin, which is part of its time."""

    def with_body(self, body: Body) -> HttpRequest:
        """The next request with the same head, as clients that keep their connection mostly send; shares
        `derived`."""
        return HttpRequest(self.method, self.target, self.headers, body, self.peer_is_local, self.peer, self.takes_chunks, self.derived)

    def with_target(self, target: bytes) -> HttpRequest:
        """Return this request for another target, such as the model behind a route."""
        readdressed = self.derived.readdressed
        if readdressed is None or readdressed.target != target:
            readdressed = HttpRequest(self.method, target, self.headers, b"", self.peer_is_local, self.peer, self.takes_chunks)
            self.derived.readdressed = readdressed
        return readdressed.with_body(self.body)

    def header(self, lowercase_name: bytes) -> bytes | None:
        """The first field of that name, or None."""
        values = (self.derived.fields or self._fields()).get(lowercase_name)
        return values[0] if values else None

    def text_header(self, lowercase_name: bytes) -> str | None:
        """All fields of that name, joined by commas as text, or None."""
        values = (self.derived.fields or self._fields()).get(lowercase_name)
        return b", ".join(values).decode("latin-1") if values else None

    @property
    def request_id(self) -> str:
        """The field `x-request-id`, or empty."""
        return self.text_header(b"x-request-id") or ""

    @property
    def content_length(self) -> int:
        """The length that the head announces; the body may not have arrived yet."""
        return int(self.header(b"content-length") or 0)

    def single_header(self, lowercase_name: bytes) -> bytes | None:
        """The only field of that name, or None.

        Raises InvalidRequest if there are several: Triton's parser might take another one than was checked
        here.
        """
        values = (self.derived.fields or self._fields()).get(lowercase_name)
        if values is None:
            return None
        if len(values) > 1:
            raise InvalidRequest(f"the header {lowercase_name.decode()} occurs {len(values)} times")
        return values[0]

    def _fields(self) -> dict[bytes, list[bytes]]:
        fields = self.derived.fields = {}
        for name, value in self.headers:
            fields.setdefault(name.lower(), []).append(value)
        return fields


@dataclass(slots=True)
class HttpAnswer:
    """One answer as it is sent: `head` ends with the empty line and frames `body` by Content-Length.

    Never modified, but not a frozen dataclass, which takes longer to make.
    """

    status: int
    head: bytes
    body: Body


_CHUNKED = re.compile(rb"\r\nTransfer-Encoding:[^\r\n]*\r\n", re.IGNORECASE)

_REASONS = {
    200: b"OK",
    202: b"Accepted",
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
    """An answer from the gateway itself, framed by Content-Length."""
    lines = [b"HTTP/1.1 %d %b" % (status, _REASONS[status]), b"Content-Type: " + content_type, b"Content-Length: %d" % len(body)]
    lines += [name + b": " + value for name, value in headers or ()]
    return HttpAnswer(status, b"\r\n".join(lines) + b"\r\n\r\n", body)


NOT_KEPT = (b"Cache-Control", b"no-store")
"""Field of an answer that only this caller may see: what is shown with an `x-api-key` looks to a cache as if anybody could get it
(RFC 9111, 3.5)."""


def with_header(answer: HttpAnswer, line: bytes) -> HttpAnswer:
    """Return this answer with one more header line."""
    return HttpAnswer(answer.status, with_line(answer.head, line), answer.body)


def with_line(head: bytes, line: bytes) -> bytes:
    """Return a head with one more header line."""
    return head[:-2] + line + b"\r\n\r\n"


def no_content(headers: Headers) -> HttpAnswer:
    """A 204 answer, which must have neither a body nor a Content-Length (RFC 9110, 8.6)."""
    lines = [b"HTTP/1.1 204 No Content", *(name + b": " + value for name, value in headers)]
    return HttpAnswer(204, b"\r\n".join(lines) + b"\r\n\r\n", b"")


def is_chunked(head: bytes) -> bool:
    """Whether what follows the head of an answer comes in chunks; else the head says how much it is."""
    return _CHUNKED.search(head) is not None


def without_chunks(head: bytes) -> bytes:
    """The head of a chunked answer, changed for an HTTP/1.0 client, which reads until the connection ends."""
    return _CHUNKED.sub(b"\r\n", head)


def upstream_pieces(
    request: HttpRequest, host: bytes, forwarding: HeaderForwarding = NO_FORWARDING, left_s: float | None = None
) -> list[Body]:
    """Serialise the request for Triton: the fields that `forwarding` passes, unchanged, one Content-Length, and how many
    seconds it has left if the model is told.

    The head is built once for all requests that share it, so `forwarding` must be the same for all of them.
    """
    derived = request.derived
    # The host of a control call has the control secret with it, so a head with the secret serves only those.
    if derived.upstream_host != host:
        derived.upstream_host, derived.upstream_head = host, _upstream_head(request, host, forwarding)
        derived.upstream_bytes = -1
    body = request.body
    size = len(body)
    if derived.upstream_bytes != size:
        derived.upstream_bytes, derived.upstream_whole = size, b"%b%d\r\n\r\n" % (derived.upstream_head, size)
    whole = derived.upstream_whole
    if left_s is not None:
        whole = b"%b%b: %b\r\n\r\n" % (whole[:-2], TIME_LEFT_FIELD, time_left_value(left_s))
    return [whole + body] if size <= _SMALL_BYTES else [whole, body]


def _upstream_head(request: HttpRequest, host: bytes, forwarding: HeaderForwarding) -> bytes:
    """The head up to the value of Content-Length, which differs between requests that share a head."""
    parts = [request.method, b" ", request.target, b" HTTP/1.1\r\nHost: ", host, b"\r\n"]
    listed = _named_by_connection(request)
    for name, value in request.headers:
        lowered = name.lower()
        if lowered not in listed and forwarding.passes(lowered, value):
            parts += (name, b": ", value, b"\r\n")
    return b"".join((*parts, b"Content-Length: "))


def _named_by_connection(request: HttpRequest) -> set[bytes]:
    """Names of the fields that `Connection` declares hop-by-hop, which must not be forwarded (RFC 9110,
    7.6.1)."""
    named: set[bytes] = set()
    for name, value in request.headers:
        # These two are options of the connection; all others are names of fields.
        if name.lower() == b"connection" and value.lower() not in (b"keep-alive", b"close"):
            named.update(option.strip().lower() for option in value.split(b","))
    return named - _NEVER_HOP_BY_HOP
