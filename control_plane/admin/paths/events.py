"""Path of the admin API for events, as server-sent events (HTML Living Standard, 9.2)."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import FastAPI, Header, Query, Request, Response
from pydantic.json_schema import SkipJsonSchema
from starlette.types import Receive, Scope, Send

from control_plane.admin.actor import PRINCIPAL
from control_plane.admin.errors import error_responses
from control_plane.admin.events.feed import GAP, EventFeed, EventReader, GatewayEvent
from control_plane.auth.access import Access
from control_plane.auth.domain.authorization import need_of_admin_call
from control_plane.auth.stream_rights import StreamRights
from control_plane.core.errors import ErrorCode, PermissionDenied, Unauthenticated
from control_plane.core.principal import ANONYMOUS, Principal
from control_plane.frontends.http.answers.event_stream import HEAD, HEARTBEAT, HEARTBEAT_S, RETRY, render_event
from control_plane.frontends.http.answers.streams import watched
from control_plane.triton.ports import HttpStream

STREAM = "tidegate.stream"
"""ASGI extension of our own HTTP server: takes a stream instead of messages, so that the server reads it as fast as the client."""

_ERRORS = error_responses(ErrorCode.INVALID_ARGUMENT, ErrorCode.OVERLOADED)
AS_EVENTS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}

LastEventId = Annotated[
    str | SkipJsonSchema[None],
    Header(description="Id of the last event that was received: the stream goes on after it, as far as it is kept."),
]
Backlog = Annotated[bool, Query(description="Whether to begin with the events that are kept, 1000 at most.")]
Follow = Annotated[bool, Query(description="Whether to go on; else the answer ends with the events that are kept.")]


class EventStream:
    """Stream of server-sent events to one caller: a `triton/ports.HttpStream`, which the server reads as fast as its client."""

    status = 200
    head = HEAD

    def __init__(
        self,
        feed: EventFeed,
        reader: EventReader,
        *,
        follow: bool,
        heartbeat_s: float = HEARTBEAT_S,
        render: Callable[[GatewayEvent, str], bytes] | None = None,
    ) -> None:
        """`render` makes an event of the stream of an event and its id."""
        self._feed = feed
        self._reader = reader
        self._render = render or _rendered
        self._follow = follow
        self._heartbeat_s = heartbeat_s
        self._is_begun = self._is_over = False

    async def receive(self) -> bytes | None:
        """Return the next events, a heartbeat after a time without any, or None at the end."""
        if not self._is_begun:
            self._is_begun = True
            return self._beginning()
        if self._is_over:
            return None
        while True:
            if self._reader.is_too_slow:
                self._is_over = True
                return render_event("dropped", b'{"reason": "it was read too slowly; connect again with Last-Event-ID"}')
            if found := self._reader.take():
                return b"".join(self._render(event, self._feed.id_of(event.number)) for event in found)
            if not self._follow:
                return None
            if not await self._reader.wait(self._heartbeat_s):
                return HEARTBEAT

    def close(self) -> None:
        self._reader.close()

    def _beginning(self) -> bytes:
        if not self._reader.has_gap:
            return RETRY
        return RETRY + GAP


def _rendered(event: GatewayEvent, id_: str) -> bytes:
    at = datetime.fromtimestamp(event.at_s, UTC).isoformat()
    data = json.dumps({"at": at, "kind": event.kind, **event.fields}, default=str)
    return render_event(event.kind, data.encode(), id=id_)


class EventResponse(Response):
    """Response that hands its stream to our HTTP server; to any other it sends what there is, and ends."""

    media_type = "text/event-stream"

    def __init__(self, open_: Callable[[bool], HttpStream], watch: Callable[[], Any], *, follow: bool) -> None:
        super().__init__()
        self._open = open_
        self._watch = watch
        self._follow = follow

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        taker = scope.get("extensions", {}).get(STREAM)
        stream = self._open(self._follow and taker is not None)
        if taker is not None:
            try:
                taker.stream = await watched(_ready(stream), self._watch())
            except BaseException:
                stream.close()
                raise
            return
        try:
            pieces = []
            while (piece := await stream.receive()) is not None:
                pieces.append(piece)
        finally:
            stream.close()
        self.body = b"".join(pieces)
        self.init_headers({"cache-control": "no-store"})
        await super().__call__(scope, receive, send)


async def _ready(stream: HttpStream) -> HttpStream:
    return stream


def add_event_path(app: FastAPI, feed: EventFeed, access: Access) -> None:
    """Add `/events`."""
    rights = StreamRights(access)

    @app.get("/events", tags=["events"], responses=_ERRORS | AS_EVENTS, response_class=Response)
    async def read_events(request: Request, last_event_id: LastEventId = None, backlog: Backlog = False, follow: Follow = True) -> Response:
        """Events of the fleet, of rollouts and of loads on this gateway, as server-sent events.

        `data` is a JSON object with `at`, `kind` and what the kind has. A comment is sent after 15 s without events. An event
        `gap` says that some are missing, `dropped` that the caller has read too slowly. Streams are bounded: 4 for each caller,
        32 together.
        """
        principal, who = caller_of(request)
        reader = feed.read(who, after=last_event_id or "", backlog=backlog or not follow)
        return EventResponse(
            lambda follows: EventStream(feed, reader, follow=follows),
            lambda: rights.watch(principal, lambda: confirmed(request, access)),
            follow=follow,
        )


def caller_of(request: Request) -> tuple[Principal, str]:
    """Return who asks, and the name by which its streams are counted."""
    principal: Principal = request.scope.get(PRINCIPAL, ANONYMOUS)
    return principal, f"{principal.tenant}/{principal.key_id}@{request.client.host if request.client is not None else ''}"


def confirmed(request: Request, access: Access) -> Principal:
    """Authenticate and authorize the caller again. Raises Unauthenticated, LimitExceeded."""
    headers = request.headers
    principal = access.reauthenticate(
        authorization=headers.get("authorization"),
        api_key=headers.get("x-api-key"),
        peer=request.client.host if request.client is not None else "",
        forwarded_for=headers.get("x-forwarded-for"),
    )
    try:
        access.require(principal, need_of_admin_call("GET", "/events"))
    except PermissionDenied as exc:
        raise Unauthenticated(str(exc)) from exc
    return principal
