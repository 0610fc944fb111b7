"""Wires events of one gateway: those it publishes to Redis Streams, and those the admin API streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from control_plane.admin.events.feed import EventFeed, GatewayEvent
from control_plane.admin.events.logs import LogReaders
from control_plane.admin.events.subscriptions import Subscriptions
from control_plane.app.data_plane.event_streams import gateway_source, make_event_streams, store_name
from control_plane.app.data_plane.request_services import RequestServices
from control_plane.audit.ports import AuditLog
from control_plane.events.domain.cloud_event import gateway_event, source_of_store
from control_plane.events.domain.stream import Stream
from control_plane.events.logs import AuditEntries, UsageRecords
from control_plane.events.ports import EventStreams, NumberedLog
from control_plane.events.queue import EventQueue
from control_plane.events.relay import EventRelay
from control_plane.events.tenant_tap import Tapped
from control_plane.events.tenant_usage import TenantUsage
from control_plane.settings import Settings
from control_plane.telemetry.request_counts import EventCount
from control_plane.workers.parent.tenant_relay import TenantRelay
from control_plane.workers.parent.workers import Workers

_BEHIND_S = 30.0
_CLOSE_TIMEOUT_S = 0.5
_LOOK_EVERY_S = 0.25


class EventServices:
    """What a gateway tells others: the process that has the admin API runs it, beside whatever answers requests."""

    def __init__(self, settings: Settings, services: RequestServices, audit: AuditLog, streams: EventStreams | None) -> None:
        """Wire it."""
        store = store_name(settings.state.state_url, settings.process.state_dir)
        source = source_of_store(store)
        logs: dict[Stream, NumberedLog] = {
            Stream.USAGE: UsageRecords(services.usage, source),
            Stream.AUDIT: AuditEntries(audit, source),
        }
        self.feed = EventFeed()
        self.subscriptions = Subscriptions(logs, LogReaders(store), gateway_source())
        self._services = services
        self._tenants = services.events.tenants
        self._tenant_usage = TenantUsage(services.usage, self._tenants)
        self._tenant_relay: TenantRelay | None = None
        self._relay = None if streams is None else EventRelay(streams, logs)
        self._queue: EventQueue[GatewayEvent] | None = None
        if streams is not None:
            self._queue = EventQueue(streams, Stream.GATEWAY, self._encoded)
            self.feed.tell = self._queue.write

    def follow(self, workers: Workers | None) -> None:
        """Follow what the processes of the data ports tell while somebody reads it: these workers, or this process."""
        own = self._services.events
        self.subscriptions.requests.watched = own.watch if workers is None else workers.watch_requests
        if workers is None:
            self._tenants.changed = own.collect_for
        else:
            workers.requests_ended = self.requests_ended
            self._tenant_relay = workers.serve_tenants(self._tenants)

    def requests_ended(self, events: list[bytes]) -> None:
        """Pass requests on to those who read them."""
        self.subscriptions.requests.publish_encoded("request.ended", events)

    async def run(self) -> None:
        """Publish until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._pass_on(), name="ended-requests")
            tasks.create_task(self._tell_tenants(), name="tenants-events")
            if self._relay is not None and self._queue is not None:
                tasks.create_task(self._relay.run(), name="published-logs")
                tasks.create_task(self._queue.run(), name="published-events")

    async def close(self) -> None:
        """Publish what this gateway has told last; `run` must have ended."""
        if self._queue is not None:
            await self._queue.close(_CLOSE_TIMEOUT_S)

    def counts(self) -> tuple[EventCount, ...]:
        """Return what became of events that no process of the data ports counts."""
        if self._relay is None or self._queue is None:
            return ()
        published = {**self._relay.published, Stream.GATEWAY: self._queue.published}
        lost = {**self._relay.lost, Stream.GATEWAY: self._queue.dropped}
        return (*(EventCount(each, True, n) for each, n in published.items()), *(EventCount(each, False, n) for each, n in lost.items()))

    @property
    def behind_s(self) -> float:
        """Seconds since usage and audit were last published as far as they are stored."""
        return 0.0 if self._relay is None else self._relay.behind_s

    def degraded(self) -> list[str]:
        """Return what does not work as it should, a sentence each."""
        is_behind = self.behind_s > _BEHIND_S
        return ["events of usage and audit are not published, and wait: the log says why"] if is_behind else []

    async def _pass_on(self) -> None:
        """Pass this process's own requests on; those of workers come by `requests_ended`."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            while ended := self._services.events.tap.take():
                self.requests_ended(ended)
                await asyncio.sleep(0)

    async def _tell_tenants(self) -> None:
        """Tell tenants of this process's own requests and jobs, and of usage; what workers tell comes by their relay."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            while tapped := self._services.events.tenant_tap.take():
                self._publish(tapped)
                await asyncio.sleep(0)
            await self._tenant_usage.look()
            if self._tenant_relay is not None:
                self._tenant_relay.flush()
            self._tenants.sweep()

    def _publish(self, tapped: list[Tapped]) -> None:
        for event in tapped:
            self._tenants.publish(event.tenant, event.kind, event.at_s, event.data.encode())

    def _encoded(self, event: GatewayEvent) -> bytes:
        id_, source = self.feed.id_of(event.number), self.subscriptions.source
        return gateway_event(event.kind, event.fields, id=id_, source=source, at_s=event.at_s)


@asynccontextmanager
async def open_event_services(settings: Settings, services: RequestServices, audit: AuditLog) -> AsyncIterator[EventServices]:
    """Open the event services; on exit, after `run` has ended, what was told last is published. Raises StartupError."""
    async with AsyncExitStack() as held:
        streams = make_event_streams(settings)
        if streams is not None:
            held.push_async_callback(streams.close)
        events = EventServices(settings, services, audit, streams)
        held.push_async_callback(events.close)
        yield events
