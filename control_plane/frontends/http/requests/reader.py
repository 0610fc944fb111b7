"""HTTP/1.1 request parser of one client's connection: turns incoming bytes into whole requests, within
limits.

httptools (llhttp) does the parsing. Everything that can be decided by a head is decided before the body is
read. The reader knows no transport: the connection (`frontends/http/connection`) feeds it bytes and is its
`RequestSink`.
"""

from __future__ import annotations

from math import log
from typing import Any

import httptools

from control_plane.core.errors import ControlPlaneError, InvalidRequest, PermissionDenied
from control_plane.frontends.common.body_budget import UNCOUNTED_BYTES
from control_plane.frontends.http.limits import MAX_FIELDS, MAX_LINE_BYTES, HttpLimits, StreamedBody, line_too_long, too_many_fields
from control_plane.frontends.http.requests.body_parser import body_head, body_parser
from control_plane.frontends.http.requests.body_stream import BodyStream
from control_plane.frontends.http.requests.head_framing import framing_of
from control_plane.frontends.http.requests.known_head import MAX_KNOWN_HEAD_BYTES, KnownHead
from control_plane.frontends.http.requests.piece_ends import PieceEnds
from control_plane.frontends.http.requests.sink import Admit, RequestSink, Streams, streams_none
from control_plane.host.memory.large_buffers import free_in_steps
from control_plane.host.network.exposure import AllowedHosts
from control_plane.protocols.head_template import Http1Template
from control_plane.protocols.http1 import Body, HttpRequest
from control_plane.protocols.kserve.routes import authority_in, origin_form
from control_plane.protocols.per_request import NO_FIELDS, PerRequestFields

_MAX_PIECES = 8
"""Pieces (a head, chunks) that are parsed in one go, before other connections get their turn."""

_HEAD_END = b"\r\n\r\n"

_BLANKS = b" \t"
"""Whitespace around a field's value, which is not part of it (RFC 9110, 5.5). llhttp does not strip it at the
end."""

_NO_REQUEST = HttpRequest(b"", b"")


class RequestReader:
    """Request parser of one connection, one request at a time; `feed` and `read_backlog` never raise."""

    def __init__(
        self,
        sink: RequestSink,
        limits: HttpLimits,
        admit: Admit,
        *,
        peer_is_local: bool,
        peer: str = "",
        per_request: PerRequestFields = NO_FIELDS,
        hosts: AllowedHosts | None = None,
        streams: Streams = streams_none,
    ) -> None:
        """`hosts` are the host names that the client may call; None: any. `per_request` names the fields in which
        requests may differ for the verbatim cache."""
        self._sink = sink
        self._verbatim_entries = sink.verbatim_entries
        self._limits = limits
        self._max_header_bytes = limits.max_header_bytes
        # A field may count for one byte more than it has, where no blank follows its name.
        self._max_similar_bytes = min(MAX_KNOWN_HEAD_BYTES, limits.max_header_bytes - MAX_FIELDS)
        self._admit = admit
        self._peer_is_local = peer_is_local
        self._peer = peer
        self._per_request = per_request
        self._hosts = hosts
        self._streams = streams
        self._parser: Any = httptools.HttpRequestParser(self)
        self._data, self._at = b"", 0
        self._request = _NO_REQUEST
        self._body: Body = b""
        self._ends = PieceEnds()
        self._body_head = b""
        """The framing of a body behind an offer to upgrade, for which the parser takes the request to end with its head."""
        self._header_bytes = 0
        self._unparsed_line_bytes = 0
        """Bytes given to the parser since its last callback: an incomplete line that grows inside the
        parser."""
        self._whole_requests = 0
        self._is_counted = False
        self._known: KnownHead | None = None
        self.has_ended = False
        """Whether nothing more is parsed: after an error, an upgrade, or the end of the connection (`stop`)."""
        self.has_backlog = False
        """Whether bytes have been left over, or kept, that are not parsed yet; `read_backlog` parses them."""
        self.is_between_requests = True
        self.head_is_read = False
        self.wants_continue = False
        """Whether the client waits for `100 Continue` before it sends its body, and the head was admitted."""
        self.stream: BodyStream | None = None
        """Streamed body that is not whole yet, of a request that was accepted already."""
        self._stream_kind = StreamedBody.BODY

    @property
    def target(self) -> bytes:
        """Target of the incomplete request, as far as it has arrived."""
        return self._request.target

    @property
    def body_progress(self) -> int:
        """Number that changes as the incomplete body arrives: with each sixteenth of it, or of what has come where its size is
        not known. One sent a byte at a time would hold its memory for ever."""
        if self.stream is not None:
            return self.stream.received_bytes // UNCOUNTED_BYTES
        if size := self._request.content_length:
            return len(self._body) // max(size // 16, 1)
        return int(16 * log(len(self._body) + 1))

    @property
    def unread_bytes(self) -> int:
        return len(self._data) - self._at if self.has_backlog else 0

    def feed(self, data: bytes) -> bool:
        """Parse new data as far as `read_backlog` does; returns whether more is left.

        Nothing may be unread before.
        """
        known = self._known
        # The common case, a repeated head with its whole body in one read, needs no parser at all.
        if known and self.is_between_requests and len(data) == known.request_bytes and data.startswith(known.head) and not self.has_ended:
            self._take_known(known, data[len(known.head) :])
            return False
        if self.has_ended:
            return False
        self._data, self._at = data, 0
        return self.read_backlog()

    def keep(self, data: bytes) -> None:
        """Store new data, to be parsed later by `read_backlog`."""
        if not self.has_ended:
            self._data, self._at = self._data[self._at :] + data, 0
            self.has_backlog = True

    def stop(self) -> None:
        """Parse nothing more, and drop what is unread."""
        self.has_ended, self.has_backlog = True, False
        self._data, self._at = b"", 0

    def read_backlog(self) -> bool:
        """Parse to the end of one request, or one slice of a longer one; returns whether more is left."""
        data, start, known = self._data, self._at, self._known
        size = len(data)
        if known and self.is_between_requests and size - start >= known.request_bytes and data.startswith(known.head, start):
            at = start + known.request_bytes
            self._take_known(known, data[start + len(known.head) : at])
        elif known and self.is_between_requests and self._verbatim_entries:
            at = self._take_similar(known, data, start)
        else:
            at = self._read_unknown(data, start)
        if at < size and not self.has_ended:
            self._at, self.has_backlog = at, True
            return True
        self._data, self._at, self.has_backlog = b"", 0, False
        return False

    def _take_known(self, known: KnownHead, body: bytes) -> None:
        # While nothing is cached, the template would be made for nothing.
        if self._verbatim_entries:
            template = known.template or known.make_template(self._per_request)
            if self._sink.answer_verbatim(template.key, body):
                return
        self._sink.accept(known.request.with_body(body), keep_alive=True)

    def _take_similar(self, known: KnownHead, data: bytes, start: int) -> int:
        """Answer a request from the verbatim cache whose head is the known one but for per-request fields, or parse
        it; returns where it ends, as `_read_unknown` does."""
        template = known.template or known.make_template(self._per_request)
        found = template.match(data, start)
        if found is None:
            return self._read_unknown(data, start)
        body_at, body_bytes = found
        end = body_at + body_bytes
        if end <= len(data) and body_at - start <= self._max_similar_bytes and self._sink.answer_verbatim(template.key, data[body_at:end]):
            return end
        return self._read_unknown(data, start, template)

    def _read_unknown(self, data: bytes, start: int, template: Http1Template | None = None) -> int:
        """Run the parser from `start`; returns the position up to which it got. `template` has recognised the head
        there.

        It is given a piece at a time (`piece_ends`), and no more than a few before others have their turn.
        """
        at, size, pieces, ends = start, len(data), 0, self._ends
        began_between, self._whole_requests = self.is_between_requests, 0
        while True:
            stop = ends.end(data, at)
            self._parse(data if stop - at == size else data[at:stop])
            at, pieces = stop, pieces + 1
            if self._whole_requests or at == size or self.has_ended:
                break
            if ends.missing_bytes <= 0 and (pieces == _MAX_PIECES or not ends.is_at_chunk):
                break
        if began_between and self.is_between_requests and self._whole_requests == 1 and not self._is_counted:
            self._remember(data, start, at, template)
        if self.is_between_requests:
            self._request = _NO_REQUEST  # frees the body, instead of keeping it until the next request
        return at

    def forget(self) -> None:
        """Drop all data, as the connection has ended.

        Reader and parser form a reference cycle, which would keep the data until a garbage collection.
        """
        self.stop()
        if isinstance(self._body, bytearray):
            holder, self._body = [self._body], b""
            free_in_steps(holder)
        self._body, self._request, self._known, self._parser, self.stream = b"", _NO_REQUEST, None, None, None

    def _parse(self, data: bytes) -> None:
        self._unparsed_line_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as exc:
            # httptools raises an error of its own for whatever a callback has raised.
            cause = exc.__context__
            self._end(cause if isinstance(cause, ControlPlaneError) else InvalidRequest("the request cannot be read"))
        except httptools.HttpParserUpgrade:
            self._pass_over_offer()
        except httptools.HttpParserError as exc:
            self._end(InvalidRequest(f"not a well-formed HTTP/1.1 request: {exc}"))
        if self._unparsed_line_bytes > self._max_header_bytes:
            # A line without an end grows inside the parser, whose callbacks report whole fields only.
            self._end(self._limits.head_too_large())
        if not self.head_is_read and len(self._request.headers) > MAX_FIELDS:
            self._end(too_many_fields())

    def _pass_over_offer(self) -> None:
        """Read on as if the request had not asked for an upgrade; after it nothing is HTTP/1.1. Its head has ended a piece."""
        head, self._body_head = self._body_head, b""
        if head:
            self._parser = body_parser(self)
            self._parse(head)
        else:
            self.has_ended = True

    def _end(self, error: ControlPlaneError) -> None:
        if not self.has_ended:
            self.has_ended = True
            self._sink.refuse(error)

    def _remember(self, data: bytes, start: int, stop: int, template: Http1Template | None) -> None:
        """Remember the head of a request that arrived whole, for `KnownHead`, unless it needs special
        handling."""
        request = self._request
        head = data[start : stop - len(request.body)]
        # False for a chunked body, or if the parser skipped empty lines after the request: then bytes are not
        # head + body.
        ends_with_body = data.endswith(request.body, start, stop) and head.endswith(_HEAD_END)
        plain = ends_with_body and request.header(b"transfer-encoding") is None and request.header(b"expect") is None
        if plain and self._keeps_alive() and len(head) <= MAX_KNOWN_HEAD_BYTES:
            request.derived.head = head
            self._known = KnownHead(head, stop - start, request.with_body(b""), template)

    # httptools' callbacks

    def on_message_begin(self) -> None:
        self._request = HttpRequest(b"", b"", [], peer_is_local=self._peer_is_local, peer=self._peer)
        self._body = b""
        self._header_bytes = 0
        self._is_counted = self.head_is_read = self.is_between_requests = False

    def on_url(self, url: bytes) -> None:
        self._header_bytes += len(url)  # called once for each piece of the target that arrives
        if self._header_bytes > self._max_header_bytes:
            raise self._limits.head_too_large()
        self._request.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        size = len(name) + len(value)
        self._header_bytes += size + 4
        if self._header_bytes > self._max_header_bytes:
            raise self._limits.head_too_large()
        if size > MAX_LINE_BYTES:
            raise line_too_long()
        if not self.head_is_read:  # trailer fields must not be merged into the head (RFC 9110, 6.5.1)
            self._request.headers.append((name, value.strip(_BLANKS)))

    def on_headers_complete(self) -> None:
        self._unparsed_line_bytes = 0
        self.head_is_read = True
        request = self._request
        request.method = self._parser.get_method()
        if self._parser.get_http_version() not in ("1.1", "1.0"):
            raise InvalidRequest("the request line does not end in HTTP/1.1")
        if len(request.target) > MAX_LINE_BYTES:
            raise line_too_long()
        if len(request.headers) > MAX_FIELDS:
            raise too_many_fields()
        request.takes_chunks = self._parser.get_http_version() == "1.1"
        framing = framing_of(request.headers)
        body_bytes, is_chunked = framing.body_bytes, framing.is_chunked
        wants_continue = framing.wants_continue and request.takes_chunks  # HTTP/1.0 has no interim answers (RFC 9110, 10.1.1)
        authority, request.target = authority_in(request.target), origin_form(request.target)
        if self._hosts is not None:
            _check_host(self._hosts, framing.host, authority, framing.fetch_site)
        if (body_bytes or is_chunked) and self._parser.should_upgrade():
            self._body_head = body_head(request.headers)
        self._ends.begin_body(body_bytes, is_chunked=is_chunked)
        if (is_chunked or body_bytes > UNCOUNTED_BYTES) and (kind := self._streams(request)) is not None:
            self._begin_stream(request, kind, body_bytes, wants_continue=wants_continue)
            return
        if not self._limits.takes(request.target, body_bytes):
            raise self._limits.body_too_large()
        if is_chunked or wants_continue or body_bytes > UNCOUNTED_BYTES:
            # A refusal here costs the connection, as the body is not read. Small bodies are read first: the
            # request is refused in the same way then, and the connection can be kept.
            self._admit(request)
            self.wants_continue = wants_continue
        if body_bytes > UNCOUNTED_BYTES:
            self._is_counted = True
            self._sink.reserve(body_bytes)

    def _begin_stream(self, request: HttpRequest, kind: StreamedBody, body_bytes: int, *, wants_continue: bool) -> None:
        """Accept a request on its head; its body follows as a stream. Raises ControlPlaneError."""
        self._limits.check_streamed(kind, body_bytes)
        self._admit(request)
        self.wants_continue = wants_continue
        self._is_counted = True
        self.stream, self._stream_kind = BodyStream(self._sink.read_on), kind
        request.stream = self.stream
        self._sink.accept(request, keep_alive=self._keeps_alive())

    def on_body(self, body: bytes) -> None:
        self._unparsed_line_bytes = 0
        self.wants_continue = False
        if self.stream is not None:
            self._limits.check_streamed(self._stream_kind, self.stream.received_bytes + len(body))
            self.stream.put(body)
            return
        if not self._limits.takes(self._request.target, len(self._body) + len(body)):
            raise self._limits.body_too_large()
        if not self._body:  # a body that arrives in one piece is not copied, and stays hashable for the caches
            self._body = body
        elif isinstance(self._body, bytearray):
            self._body += body
        else:
            self._body = bytearray(self._body) + body
        if not self._is_counted and len(self._body) > UNCOUNTED_BYTES:
            self._count_chunk(len(body))

    def on_message_complete(self) -> None:
        if self._body_head:
            return
        self._unparsed_line_bytes = 0
        self.wants_continue = False
        self.is_between_requests = True
        self._whole_requests += 1
        if self.stream is not None:
            stream, self.stream = self.stream, None
            stream.end()
            return
        self._request.body, self._body = self._body, b""
        self._sink.accept(self._request, keep_alive=self._keeps_alive())

    def _count_chunk(self, size_bytes: int) -> None:
        """Reserve memory for a chunked body as it arrives, since its size is not known beforehand."""
        came_before = len(self._body) - size_bytes
        if (came_before - 1).bit_length() != (len(self._body) - 1).bit_length():
            # It has doubled. Whether the call takes so large a one, the application could not tell by the head.
            self._request.body = self._body
            self._admit(self._request)
        self._sink.reserve(size_bytes if came_before > UNCOUNTED_BYTES else len(self._body))

    def _keeps_alive(self) -> bool:
        """Whether the connection stays open after the answer.

        Never for HTTP/1.0: its clients expect the connection to end after an answer without `Connection:
        keep-alive`.
        """
        return bool(self._parser.should_keep_alive()) and self._parser.get_http_version() == "1.1" and not self._parser.should_upgrade()


def _check_host(allowed: AllowedHosts, host: bytes | None, authority: bytes | None, fetch_site: bytes | None) -> None:
    """Check the host in the head, and the one in a target of absolute form. Raises PermissionDenied."""
    reason = allowed.refusal(host, fetch_site) or allowed.refusal(authority, None)
    if reason is not None:
        raise PermissionDenied(reason)
