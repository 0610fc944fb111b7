"""A tenant's own events as server-sent events (`GET /v2/events`): its usage, and its requests and jobs as they end, as CloudEvents.

The feeds are those of `events/tenant_feeds`. A slow reader gets a message and is disconnected; it resumes by `Last-Event-ID`. The
server closes the connection of one that does not read, as it does any connection. Called by `frontends/kserve/http`, which has
authorised the caller and ends the stream with its rights.
"""

from __future__ import annotations

import asyncio

from control_plane.core.principal import Principal
from control_plane.events.tenant_feeds import TenantFeeds, TenantReader
from control_plane.frontends.http.answers.event_stream import HEAD, HEARTBEAT, HEARTBEAT_S, RETRY, render_event
from control_plane.protocols.http1 import HttpRequest

_AT_ONCE = 50
_READY_WITHIN_S = 2.0
"""Time for the parent of this worker to send a tenant's feed."""
_GAP = render_event("gap", b'{"reason": "events before the next one are not kept any more, or are of another gateway"}')
_TOO_SLOW = render_event("dropped", b'{"reason": "it was read too slowly; connect again with Last-Event-ID"}')
_NOT_READY = render_event("dropped", b'{"reason": "events cannot be told now; connect again"}')


class TenantEventsHttp:
    """The application behind `/v2/events`: `frontends/kserve/http.EventsApplication`."""

    def __init__(self, feeds: TenantFeeds, *, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._feeds = feeds
        self._heartbeat_s = heartbeat_s

    def read(self, request: HttpRequest, principal: Principal) -> TenantEventStream:
        """Begin to read the events of the caller's tenant. Raises LimitExceeded, Overloaded: too many do already."""
        after = request.text_header(b"last-event-id") or ""
        return TenantEventStream(self._feeds.read(principal.tenant, after=after), heartbeat_s=self._heartbeat_s)


class TenantEventStream:
    """Stream of a tenant's events to one caller: a `triton/ports.HttpStream`, which the server reads as fast as its client."""

    status = 200
    head = HEAD

    def __init__(self, reader: TenantReader, *, heartbeat_s: float) -> None:
        self._reader = reader
        self._heartbeat_s = heartbeat_s
        self._is_begun = self._is_over = False

    async def receive(self) -> bytes | None:
        """Return the next events, a heartbeat after a time without any, or None at the end."""
        reader = self._reader
        if not self._is_begun:
            return await self._begin()
        if self._is_over or reader.is_closing:
            return None
        if reader.is_too_slow:
            self._is_over = True
            return _TOO_SLOW
        if found := reader.take(limit=_AT_ONCE):
            return b"".join(render_event("message", event, id=id_) for id_, event in found)
        if await reader.wait(self._heartbeat_s) or reader.is_closing:
            return await self.receive()
        return HEARTBEAT

    def close(self) -> None:
        """Make room for another reader. Idempotent."""
        self._reader.close()

    async def _begin(self) -> bytes:
        self._is_begun = True
        loop = asyncio.get_running_loop()
        until_s = loop.time() + _READY_WITHIN_S
        while not self._reader.is_ready and (left_s := until_s - loop.time()) > 0:  # a copy comes in pieces
            await self._reader.wait(left_s)
        if not self._reader.is_ready:
            self._is_over = True
            return RETRY + _NOT_READY
        return RETRY + (_GAP if self._reader.begin() else b"")
