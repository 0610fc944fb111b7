"""One client's HTTP/1.1 connection on an asyncio transport: parses what comes, answers whole requests in order.

httptools (llhttp) parses. A connection is one task; a client that leaves cancels it, and with it everything its request
had under way. Made by `http_server`, which knows the address and the other connections.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, cast

import httptools

from control_plane.codec.http_message import HttpAnswer, HttpRequest, with_header
from control_plane.domain.errors import ControlPlaneError, InvalidRequest, PayloadTooLarge

_log = logging.getLogger(__name__)

Application = Callable[[HttpRequest], Awaitable[HttpAnswer]]
RenderError = Callable[[ControlPlaneError], HttpAnswer]

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_MAX_QUEUED = 2
"""Parsed requests that wait on one connection before its socket is no longer read."""

_MAX_KNOWN_HEAD_BYTES = 2048
"""Of a head that a connection keeps; Triton's clients send about 250."""

_LINGER_S = 2.0
"""How long a refused client may go on sending. Closing on unread bytes resets the connection, and the refusal is lost."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    max_body_bytes: int
    max_header_bytes: int
    max_connections: int


class ConnectionOwner(Protocol):
    """The server, as its connections see it."""

    application: Application
    render_error: RenderError
    limits: HttpLimits
    is_draining: bool

    def opened(self, connection: HttpConnection) -> bool: ...

    def closed(self, connection: HttpConnection) -> None: ...


@dataclass(frozen=True, slots=True)
class _KnownHead:
    """The head of the connection's last request. A client that keeps its connection mostly sends the same again, byte for
    byte, and equal bytes mean the same: they need neither parsing nor working out what follows from them."""

    head: bytes
    request_bytes: int
    """Of head and body together, which the head's Content-Length makes the same each time."""
    request: HttpRequest


class HttpConnection(asyncio.Protocol):
    """One client's connection: parses what comes, queues whole requests, answers them in order."""

    def __init__(self, server: ConnectionOwner, tasks: asyncio.TaskGroup) -> None:
        self._server = server
        self._tasks = tasks
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._queue: deque[tuple[HttpRequest | ControlPlaneError, bool]] = deque()
        self._arrival: asyncio.Future[None] | None = None
        self._writable: asyncio.Event = asyncio.Event()
        self._writable.set()
        self._request = HttpRequest(b"", b"")
        self._body: list[bytes] = []
        self._header_bytes = 0
        self._body_bytes = 0
        self._untold_bytes = 0
        self._head_is_read = False
        self._is_answering = False
        self._is_paused = False
        self._has_refused = False
        self._is_between_requests = True
        self._whole_requests = 0
        self._known: _KnownHead | None = None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one by behaviour, not by class
        if not self._server.opened(self):
            self._transport.abort()
            return
        self._task = self._tasks.create_task(self._serve(), name="http-connection")

    def data_received(self, data: bytes) -> None:
        if self._has_refused:
            return
        known = self._known
        if known and self._is_between_requests and len(data) == known.request_bytes and data.startswith(known.head):
            self._put(known.request.with_body(data[len(known.head) :]), keep_alive=True)
        else:
            self._parse(data)
        if len(self._queue) >= _MAX_QUEUED and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()

    def _parse(self, data: bytes) -> None:
        began_between, self._whole_requests = self._is_between_requests, 0
        self._untold_bytes += len(data)
        try:
            self._parser.feed_data(data)
            if began_between and self._is_between_requests and self._whole_requests == 1:
                self._remember(data)
        except httptools.HttpParserCallbackError as exc:
            cause = exc.__context__
            self._refuse(cause if isinstance(cause, ControlPlaneError) else InvalidRequest("the request cannot be read"))
        except httptools.HttpParserUpgrade:
            self._has_refused = True  # the request is answered as if it had not asked; what follows it is not HTTP/1.1
        except httptools.HttpParserError as exc:
            self._refuse(InvalidRequest(f"not a well-formed HTTP/1.1 request: {exc}"))
        if self._untold_bytes > self._server.limits.max_header_bytes:
            self._refuse(self._head_too_large())  # it grows within the parser, which tells of whole fields only

    def _remember(self, data: bytes) -> None:
        """Keep the head of a request that came alone and whole, unless it asks for more than an answer."""
        request = self._request
        head = data[: len(data) - len(request.body)]
        ends_with_body = data.endswith(request.body) and head.endswith(b"\r\n\r\n")  # the parser passes over empty lines behind it
        plain = ends_with_body and request.header(b"transfer-encoding") is None and request.header(b"expect") is None
        if plain and self._keeps_alive() and len(head) <= _MAX_KNOWN_HEAD_BYTES:
            self._known = _KnownHead(head, len(data), request.with_body(b""))

    def eof_received(self) -> bool:
        return False  # a client that stops sending has left: close, which cancels its request

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._server.closed(self)
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # httptools' callbacks

    def on_message_begin(self) -> None:
        self._request = HttpRequest(b"", b"", [])
        self._body = []
        self._header_bytes = self._body_bytes = 0
        self._head_is_read = self._is_between_requests = False

    def on_url(self, url: bytes) -> None:
        self._count_header_bytes(len(url))
        self._request.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_header_bytes(len(name) + len(value) + 4)
        if not self._head_is_read:  # a trailer's fields say nothing that the head may say (RFC 9110, 6.5.1)
            self._request.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._untold_bytes = 0
        self._head_is_read = True
        self._request.method = self._parser.get_method()
        has_body = wants_continue = False
        for name, value in self._request.headers:
            match name.lower():
                case b"content-length":  # the parser has made sure that it is a number, and the only one
                    has_body = value != b"0"
                    if int(value) > self._server.limits.max_body_bytes:
                        raise self._body_too_large()
                case b"transfer-encoding":
                    has_body = True
                    if value.lower() != b"chunked":
                        raise InvalidRequest(f"Transfer-Encoding {value.decode('latin-1')!r} is not supported; chunked is")
                case b"expect":
                    wants_continue = value.lower() == b"100-continue"
        if has_body and self._parser.should_upgrade():
            raise InvalidRequest("protocol upgrades are not supported; gRPC has a port of its own")
        if wants_continue and self._transport is not None and not self._queue and not self._is_answering:
            self._transport.write(_CONTINUE)

    def on_body(self, body: bytes) -> None:
        self._untold_bytes = 0
        self._body_bytes += len(body)
        if self._body_bytes > self._server.limits.max_body_bytes:
            raise self._body_too_large()
        self._body.append(body)

    def on_message_complete(self) -> None:
        self._untold_bytes = 0
        self._request.body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body = []
        self._is_between_requests = True
        self._whole_requests += 1
        self._put(self._request, keep_alive=self._keeps_alive())

    def close_when_idle(self) -> None:
        """Close now, or after the answer that is being made; one that is being sent is sent to its end."""
        if not self._is_answering and not self._queue and self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def _serve(self) -> None:
        try:
            keep_alive = True
            while keep_alive:
                item, keep_alive = await self._next()
                self._is_answering = True
                answer = self._server.render_error(item) if isinstance(item, ControlPlaneError) else await self._server.application(item)
                keep_alive = keep_alive and not self._server.is_draining
                self._write(answer, item, keep_alive=keep_alive)
                self._is_answering = False
                if not self._writable.is_set():
                    await self._writable.wait()
            await self._close()
        except asyncio.CancelledError:
            if self._transport is not None:
                self._transport.abort()
            raise
        except Exception:
            _log.exception("an HTTP connection failed; this is a defect")
            self.abort()

    async def _close(self) -> None:
        if self._has_refused and self._transport is not None:
            self._transport.write_eof()
            self._transport.resume_reading()
            await asyncio.sleep(_LINGER_S)  # until the client closes: that ends this task
        if self._transport is not None:
            self._transport.close()

    async def _next(self) -> tuple[HttpRequest | ControlPlaneError, bool]:
        while not self._queue:
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        item = self._queue.popleft()
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()
        return item

    def _put(self, item: HttpRequest | ControlPlaneError, *, keep_alive: bool) -> None:
        self._queue.append((item, keep_alive))
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def _refuse(self, error: ControlPlaneError) -> None:
        """Answer `error` after what came before it, and close: what follows can no longer be told apart."""
        self._has_refused = True
        self._put(error, keep_alive=False)
        if self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()

    def _write(self, answer: HttpAnswer, item: HttpRequest | ControlPlaneError, *, keep_alive: bool) -> None:
        if self._transport is None:
            return
        if not keep_alive:
            answer = with_header(answer, b"Connection: close")
        is_head = isinstance(item, HttpRequest) and item.method == b"HEAD"
        self._transport.write(answer.head if is_head or not answer.body else answer.head + answer.body)

    def _count_header_bytes(self, count: int) -> None:
        self._header_bytes += count
        if self._header_bytes > self._server.limits.max_header_bytes:
            raise self._head_too_large()

    def _keeps_alive(self) -> bool:
        """HTTP/1.0 clients take an answer without `Connection: keep-alive` to end with the connection, so they get that."""
        return bool(self._parser.should_keep_alive()) and self._parser.get_http_version() == "1.1" and not self._parser.should_upgrade()

    def _head_too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(f"the request head exceeds {self._server.limits.max_header_bytes} bytes (--max-header-bytes)")

    def _body_too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(f"the body exceeds the limit of {self._server.limits.max_body_bytes} bytes (--max-body-bytes)")
