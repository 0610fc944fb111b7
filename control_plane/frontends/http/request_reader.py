"""The reading side of one client's HTTP/1.1 connection: turns what arrives into whole requests, within limits.

httptools (llhttp) parses. What can be decided on a head is decided before its body is read. Knows no transport: its
connection (`frontends/http/connection`) hands it bytes and is told what they were.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import httptools

from control_plane.core.errors import ControlPlaneError, HeadTooLarge, InvalidRequest, PayloadTooLarge, PermissionDenied
from control_plane.frontends.common.body_budget import UNCOUNTED_BYTES
from control_plane.frontends.common.connection_limits import Network
from control_plane.host.exposure import AllowedHosts
from control_plane.protocols.http1 import Body, HttpRequest
from control_plane.protocols.kserve.routes import authority_in

_MAX_LINE_BYTES = 8000
"""Triton 24.10 closes the connection over a longer line of a head, without a word; a longer head of short lines it takes."""

_MAX_FIELDS = 100
"""Of one head; Envoy's default. Each costs more than its bytes say."""

_SLICE_BYTES = 4096
"""Of what has no end that is known, such as a head or chunks, at a time: its parser cannot be stopped, and this may be 700 chunks."""

_MAX_PIECES = 8
"""A head and a few chunks that came together, before others get their turn."""

_HEAD_END = b"\r\n\r\n"
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})(?:;[^\r\n]*)?\r\n")

_BLANKS = b" \t"
"""Around a field's value; they are no part of it (RFC 9110, 5.5). The parser leaves those behind it."""

_MAX_KNOWN_HEAD_BYTES = 2048
"""Of a head that a connection keeps; Triton's clients send about 250."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    max_body_bytes: int
    max_header_bytes: int
    max_connections: int
    header_timeout_s: float = 10.0
    """From a head's first byte to its last."""
    body_timeout_s: float = 60.0
    """Without any progress: of a body that comes, of memory for one, of an answer that goes."""
    idle_timeout_s: float = 300.0
    """Between requests; 0 is for ever."""
    source_share: float = 1.0
    """Part of the connections that one source may hold."""
    trusted_proxies: Sequence[Network] = ()
    """Who may hold more, since they stand for many."""


Admit = Callable[[HttpRequest], None]
"""Raises what is wrong with a request as far as its head says; its body is not there yet."""


class RequestSink(Protocol):
    """The connection, as its reader sees it."""

    def knows(self, message: bytes) -> bool:
        """Whether a whole request came so before, and is answered."""

    def take(self, request: HttpRequest, *, keep_alive: bool, message: bytes = b"") -> None:
        """A whole request; `message` is all of it as it came where its head came before."""

    def refuse(self, error: ControlPlaneError) -> None:
        """Nothing that follows can be told apart any more."""

    def reserve(self, size_bytes: int) -> None:
        """So many bytes of a body come, or have come, that is large."""


@dataclass(frozen=True, slots=True)
class _KnownHead:
    """The head of the connection's last request. A client that keeps its connection mostly sends the same again, byte for
    byte, and equal bytes mean the same: they need neither parsing nor working out what follows from them."""

    head: bytes
    request_bytes: int
    """Of head and body together, which the head's Content-Length makes the same each time."""
    request: HttpRequest


_NONE = HttpRequest(b"", b"")


class RequestReader:
    """Reads one connection's requests, one at a time; `feed` and `read_on` never raise."""

    def __init__(
        self,
        sink: RequestSink,
        limits: HttpLimits,
        admit: Admit,
        *,
        peer_is_local: bool,
        peer: str = "",
        hosts: AllowedHosts | None = None,
    ) -> None:
        """`hosts` are the names that it may be asked by; None: any."""
        self._sink = sink
        self._limits = limits
        self._max_header_bytes = limits.max_header_bytes
        self._admit = admit
        self._peer_is_local = peer_is_local
        self._peer = peer
        self._hosts = hosts
        self._parser: Any = httptools.HttpRequestParser(self)
        self._data, self._at = b"", 0
        self._request = _NONE
        self._body: Body = b""
        self._missing_bytes = 0
        """To the end of a body, or a chunk of it, whose size is known."""
        self._is_at_chunk = False
        """Whether that is where a chunk ends, behind which the size of the next one stands."""
        self._header_bytes = 0
        self._untold_bytes = 0
        self._whole_requests = 0
        self._is_counted = False
        self._known: _KnownHead | None = None
        self.has_ended = False
        """Whether what follows is no request any more."""
        self.is_between_requests = True
        self.head_is_read = False
        self.wants_continue = False
        """Whether the client waits for a 100 before it sends its body, which may be sent as far as the head is concerned."""

    @property
    def target(self) -> bytes:
        """Of the request that is coming, as far as that is known."""
        return self._request.target

    @property
    def body_bytes(self) -> int:
        """Bytes that have come of the body that is coming."""
        return len(self._body)

    @property
    def body_step_bytes(self) -> int:
        """What counts as progress of it: a body that comes a byte at a time would hold its memory for ever."""
        return max(self._request.content_length // 16, 1)

    @property
    def is_behind(self) -> bool:
        """Whether more has come than has been read; `read_on` reads it."""
        return self._at < len(self._data)

    @property
    def unread_bytes(self) -> int:
        return len(self._data) - self._at

    def feed(self, data: bytes) -> bool:
        """Take what has come, where nothing is unread, and read as far as `read_on` does; whether more is left."""
        known = self._known
        if known and self.is_between_requests and len(data) == known.request_bytes and data.startswith(known.head) and not self.has_ended:
            self._take_known(known, data)
            return False
        if self.has_ended:
            return False
        self._data, self._at = data, 0
        return self.read_on()

    def keep(self, data: bytes) -> None:
        """Take what has come, to be read later."""
        if not self.has_ended:
            self._data, self._at = self._data[self._at :] + data, 0

    def read_on(self) -> bool:
        """Read to the end of a request, or a slice of what has no end that is known; whether more is left."""
        data, start, known = self._data, self._at, self._known
        size = len(data)
        if known and self.is_between_requests and size - start >= known.request_bytes and data.startswith(known.head, start):
            at = start + known.request_bytes
            self._take_known(known, data[start:at])
        else:
            at = self._read_unknown(data, start)
        if at < size and not self.has_ended:
            self._at = at
            return True
        self._data, self._at = b"", 0
        return False

    def _take_known(self, known: _KnownHead, message: bytes) -> None:
        if not self._sink.knows(message):
            self._sink.take(known.request.with_body(message[len(known.head) :]), keep_alive=True, message=message)

    def _read_unknown(self, data: bytes, start: int) -> int:
        """Up to where it was read: the parser cannot be stopped, so it is given no more than up to the end of a head, a body or a chunk."""
        at, size, pieces = start, len(data), 0
        began_between, self._whole_requests = self.is_between_requests, 0
        while True:
            if self._missing_bytes > 0:
                stop = at + self._missing_bytes
            elif self._is_at_chunk:
                stop = self._chunk_end(data, at)
            else:
                stop = data.find(_HEAD_END, at, at + _SLICE_BYTES) + len(_HEAD_END)
                if stop < len(_HEAD_END):
                    stop = at + _SLICE_BYTES
            if stop > size:
                stop = size
            self._missing_bytes -= stop - at
            self._parse(data if stop - at == size else data[at:stop])
            at, pieces = stop, pieces + 1
            if self._whole_requests or at == size or self.has_ended:
                break
            if self._missing_bytes <= 0 and (pieces == _MAX_PIECES or not self._is_at_chunk):
                break
        if began_between and self.is_between_requests and self._whole_requests == 1 and not self._is_counted:
            self._remember(data, start, at)
        if self.is_between_requests:
            self._request = _NONE  # its body is not kept here until the next one
        return at

    def _chunk_end(self, data: bytes, at: int) -> int:
        """Where a chunk ends that begins here; it may not have come yet."""
        found = _CHUNK_SIZE.match(data, at)
        if found is None:
            self._is_at_chunk = False  # its line comes in pieces: from now on slices have to do
            return at + _SLICE_BYTES
        chunk_bytes = int(found.group(1), 16)
        self._is_at_chunk = chunk_bytes > 0
        stop = found.end() + chunk_bytes + 2
        self._missing_bytes = stop - at
        return stop

    def forget(self) -> None:
        """Let go of what has come; nothing follows. Reader and parser hold each other, so it would outlive the connection."""
        self.has_ended = True
        self._data, self._at = b"", 0
        self._body, self._request, self._known, self._parser = b"", _NONE, None, None

    def _parse(self, data: bytes) -> None:
        self._untold_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as exc:
            cause = exc.__context__
            self._end(cause if isinstance(cause, ControlPlaneError) else InvalidRequest("the request cannot be read"))
        except httptools.HttpParserUpgrade:
            self.has_ended = True  # the request is answered as if it had not asked; what follows it is not HTTP/1.1
        except httptools.HttpParserError as exc:
            self._end(InvalidRequest(f"not a well-formed HTTP/1.1 request: {exc}"))
        if self._untold_bytes > self._max_header_bytes:
            self._end(self._head_too_large())  # it grows within the parser, which tells of whole fields only
        if not self.head_is_read and len(self._request.headers) > _MAX_FIELDS:
            self._end(self._too_many_fields())

    def _end(self, error: ControlPlaneError) -> None:
        if not self.has_ended:
            self.has_ended = True
            self._sink.refuse(error)

    def _remember(self, data: bytes, start: int, stop: int) -> None:
        """Keep the head of a request that came whole, unless it asks for more than an answer."""
        request = self._request
        head = data[start : stop - len(request.body)]
        ends_with_body = data.endswith(request.body, start, stop) and head.endswith(_HEAD_END)  # empty lines behind it are passed over
        plain = ends_with_body and request.header(b"transfer-encoding") is None and request.header(b"expect") is None
        if plain and self._keeps_alive() and len(head) <= _MAX_KNOWN_HEAD_BYTES:
            self._known = _KnownHead(head, stop - start, request.with_body(b""))

    # httptools' callbacks

    def on_message_begin(self) -> None:
        self._request = HttpRequest(b"", b"", [], peer_is_local=self._peer_is_local, peer=self._peer)
        self._body = b""
        self._header_bytes = 0
        self._is_at_chunk = self._is_counted = self.head_is_read = self.is_between_requests = False

    def on_url(self, url: bytes) -> None:
        self._header_bytes += len(url)  # the whole of it may come in pieces
        if self._header_bytes > self._max_header_bytes:
            raise self._head_too_large()
        self._request.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        size = len(name) + len(value)
        self._header_bytes += size + 4
        if self._header_bytes > self._max_header_bytes:
            raise self._head_too_large()
        if size > _MAX_LINE_BYTES:
            raise self._line_too_long()
        if not self.head_is_read:  # a trailer's fields say nothing that the head may say (RFC 9110, 6.5.1)
            self._request.headers.append((name, value.strip(_BLANKS)))

    def on_headers_complete(self) -> None:
        self._untold_bytes = 0
        self.head_is_read = True
        request = self._request
        request.method = self._parser.get_method()
        if self._parser.get_http_version() not in ("1.1", "1.0"):
            raise InvalidRequest("the request line does not end in HTTP/1.1")
        if len(request.target) > _MAX_LINE_BYTES:
            raise self._line_too_long()
        if len(request.headers) > _MAX_FIELDS:
            raise self._too_many_fields()
        request.takes_chunks = self._parser.get_http_version() == "1.1"
        body_bytes, hosts, is_chunked, wants_continue = 0, 0, False, False
        host: bytes | None = None
        fetch_site: bytes | None = None
        for name, value in request.headers:
            match name.lower():
                case b"content-length":  # the parser has made sure that it is a number, and the only one
                    body_bytes = int(value)
                case b"transfer-encoding":
                    is_chunked = True
                    if value.lower() != b"chunked":
                        raise InvalidRequest(f"Transfer-Encoding {value.decode('latin-1')!r} is not supported; chunked is")
                case b"expect":
                    wants_continue = value.lower() == b"100-continue"
                case b"host":
                    hosts, host = hosts + 1, value
                case b"sec-fetch-site":
                    fetch_site = value
        if hosts > 1:
            raise InvalidRequest(f"the header host occurs {hosts} times")
        if self._hosts is not None:
            self._refuse_strange_host(self._hosts, host, fetch_site)
        if (body_bytes or is_chunked) and self._parser.should_upgrade():
            raise InvalidRequest("protocol upgrades are not supported; gRPC has a port of its own")
        if body_bytes > self._limits.max_body_bytes:
            raise self._body_too_large()
        self._missing_bytes, self._is_at_chunk = body_bytes, is_chunked
        if is_chunked or wants_continue or body_bytes > UNCOUNTED_BYTES:
            self._admit(request)  # others are answered the same once they are whole, and can keep their connection
            self.wants_continue = wants_continue
        if body_bytes > UNCOUNTED_BYTES:
            self._is_counted = True
            self._sink.reserve(body_bytes)

    def _refuse_strange_host(self, allowed: AllowedHosts, host: bytes | None, fetch_site: bytes | None) -> None:
        """A target in absolute form names one, too. Raises PermissionDenied."""
        reason = allowed.refusal(host, fetch_site) or allowed.refusal(authority_in(self._request.target), None)
        if reason is not None:
            raise PermissionDenied(reason)

    def on_body(self, body: bytes) -> None:
        self._untold_bytes = 0
        self.wants_continue = False
        if len(self._body) + len(body) > self._limits.max_body_bytes:
            raise self._body_too_large()
        if not self._body:
            self._body = body
        elif isinstance(self._body, bytearray):
            self._body += body
        else:
            self._body = bytearray(self._body) + body
        if not self._is_counted and len(self._body) > UNCOUNTED_BYTES:
            self._count_chunk(len(body))

    def on_message_complete(self) -> None:
        self._untold_bytes = 0
        self.wants_continue = False
        self._request.body, self._body = self._body, b""
        self.is_between_requests = True
        self._whole_requests += 1
        self._sink.take(self._request, keep_alive=self._keeps_alive())

    def _count_chunk(self, size_bytes: int) -> None:
        """Of a chunked body, whose size nobody knows beforehand, what has come is counted."""
        came_before = len(self._body) - size_bytes
        self._sink.reserve(size_bytes if came_before > UNCOUNTED_BYTES else len(self._body))

    def _keeps_alive(self) -> bool:
        """HTTP/1.0 clients take an answer without `Connection: keep-alive` to end with the connection, so they get that."""
        return bool(self._parser.should_keep_alive()) and self._parser.get_http_version() == "1.1" and not self._parser.should_upgrade()

    def _line_too_long(self) -> HeadTooLarge:
        return HeadTooLarge(f"a line of the request head exceeds {_MAX_LINE_BYTES} bytes, which Triton does not take")

    def _head_too_large(self) -> HeadTooLarge:
        return HeadTooLarge(f"the request head exceeds {self._limits.max_header_bytes} bytes (TIDEGATE_MAX_HEADER_BYTES)")

    def _too_many_fields(self) -> HeadTooLarge:
        return HeadTooLarge(f"the request head has more than {_MAX_FIELDS} fields")

    def _body_too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(f"the body exceeds the limit of {self._limits.max_body_bytes} bytes (TIDEGATE_MAX_BODY_BYTES)")
