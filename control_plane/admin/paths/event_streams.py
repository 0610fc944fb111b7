"""Paths of the admin API for streams of CloudEvents: the same events as on Redis Streams, as server-sent events."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response

from control_plane.admin.errors import error_responses
from control_plane.admin.events.feed import EventFeed, GatewayEvent
from control_plane.admin.events.subscriptions import Subscriptions
from control_plane.admin.paths.events import (
    AS_EVENTS,
    Backlog,
    EventResponse,
    EventStream,
    Follow,
    LastEventId,
    caller_of,
    confirmed,
)
from control_plane.auth.access import Access
from control_plane.auth.stream_rights import StreamRights
from control_plane.core.errors import ErrorCode
from control_plane.events.domain.cloud_event import gateway_event
from control_plane.events.domain.stream import Stream
from control_plane.frontends.http.answers.event_stream import render_event
from control_plane.triton.ports import HttpStream

_ERRORS = error_responses(ErrorCode.INVALID_ARGUMENT, ErrorCode.OVERLOADED, ErrorCode.STORE_UNAVAILABLE)


def add_event_stream_paths(app: FastAPI, feed: EventFeed, streams: Subscriptions, access: Access) -> None:
    """Add `/events/{stream}`."""
    rights = StreamRights(access)

    def as_cloud_event(event: GatewayEvent, id_: str) -> bytes:
        encoded = event.encoded or gateway_event(event.kind, event.fields, id=id_, source=streams.source, at_s=event.at_s)
        return render_event("message", encoded, id=id_)

    @app.get("/events/{stream}", tags=["events"], responses=_ERRORS | AS_EVENTS, response_class=Response)
    async def subscribe(
        stream: Stream, request: Request, last_event_id: LastEventId = None, backlog: Backlog = False, follow: Follow = True
    ) -> Response:
        """CloudEvents 1.0 of one stream, as server-sent events whose `data` is an event in JSON.

        `usage` and `audit` are kept in their stores, and `backlog` begins with all that are kept; `requests` are of this gateway,
        and none are kept while nobody reads them; `gateway` is what `/events` has. Comments, `gap`, `dropped` and bounds are as there.
        """
        principal, who = caller_of(request)
        after, begins_before = last_event_id or "", backlog or not follow
        if (log := streams.logs.get(stream)) is not None:
            logged = await streams.readers.read(log, who, after=after, backlog=begins_before)

            def opened(follows: bool) -> HttpStream:
                return logged.that_follows(follows)
        else:
            ring = streams.requests if stream is Stream.REQUESTS else feed
            reader = ring.read(who, after=after, backlog=begins_before)

            def opened(follows: bool) -> HttpStream:
                return EventStream(ring, reader, follow=follows, render=as_cloud_event)

        return EventResponse(opened, lambda: rights.watch(principal, lambda: confirmed(request, access)), follow=follow)
