"""Bridge from our HTTP server to an ASGI application: the admin API gets the limits and timeouts of the data
ports.

Requests and responses are passed as a whole, since bodies are small. A response that streams hands its stream over
(`admin/paths/events`). Used by `admin/server`.
"""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Scope

from control_plane.admin.paths.events import STREAM
from control_plane.core.errors import DEFECT_TEXT
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer
from control_plane.triton.ports import HttpStream

_log = logging.getLogger(__name__)

# Hop-by-hop headers, which `frontends/http/server` sets itself.
_HOP_BY_HOP_HEADERS = (b"connection", b"transfer-encoding")
_NOT_KEPT = b"cache-control: no-store"
"""Told of each answer that does not say more itself: a shared cache knows of `Authorization` (RFC 9111, 3.5), but not of `x-api-key`,
and would hand one caller's answer to others."""
_DEFECT = make_answer(500, b'{"error":"%b","code":"internal","retryable":false}' % DEFECT_TEXT.encode())


class AsgiBridge:
    """Application of `frontends/http/server` that calls an ASGI application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def answer(self, request: HttpRequest) -> HttpAnswer | HttpStream:
        """Call the application and return its response; cancelled when the caller leaves."""
        exchange = _Exchange(request)
        try:
            await self._app({**scope_of(request), "extensions": {STREAM: exchange}}, exchange.receive, exchange.send)
        except Exception:
            _log.exception("a request failed in the admin API; this is a defect")
        return exchange.stream or exchange.answer()


def scope_of(request: HttpRequest) -> Scope:
    """Translate the request's head into an ASGI scope."""
    path, _, query = request.target.partition(b"?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1" if request.takes_chunks else "1.0",
        "method": request.method.decode("ascii"),
        "scheme": "http",
        "path": unquote(path.decode("latin-1")) or "/",
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": [(name.lower(), value) for name, value in request.headers],
        "client": (request.peer, 0) if request.peer else None,
        "server": None,
    }


class _Exchange:
    """The ASGI messages of one request: `receive` and `send` of the application."""

    def __init__(self, request: HttpRequest) -> None:
        self._body: bytes | None = bytes(request.body)
        self._start: Message = {}
        self._pieces: list[bytes] = []
        self.stream: HttpStream | None = None
        """The response, where it is a stream."""

    async def receive(self) -> Message:
        if self._body is None:
            # ASGI would report a disconnect here. Wait for ever instead: when the caller leaves, the server
            # cancels us.
            await asyncio.Event().wait()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
        else:
            self._pieces.append(message.get("body", b""))

    def answer(self) -> HttpAnswer:
        if not self._start:
            return _DEFECT
        status, body = int(self._start["status"]), b"".join(self._pieces)
        lines = [b"HTTP/1.1 %d %b" % (status, HTTPStatus(status).phrase.encode())]
        names = {name.lower() for name, _ in self._start["headers"]}
        lines += [name + b": " + value for name, value in self._start["headers"] if name.lower() not in _HOP_BY_HOP_HEADERS]
        if b"content-length" not in names and status not in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
            lines.append(b"content-length: %d" % len(body))
        if b"cache-control" not in names:
            lines.append(_NOT_KEPT)
        return HttpAnswer(status, b"\r\n".join(lines) + b"\r\n\r\n", body)
