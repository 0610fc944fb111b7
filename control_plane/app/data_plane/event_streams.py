"""Wires the event streams of `--events-url`, and the events about requests that each process of the data ports publishes there."""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path
from urllib.parse import quote

from pydantic import SecretStr

from control_plane.events.domain.cloud_event import source_of_gateway
from control_plane.events.domain.stream import Stream
from control_plane.events.ports import EventStreams
from control_plane.events.queue import EventQueue
from control_plane.events.request_tap import RequestEncoder, RequestTap
from control_plane.events.tenant_feeds import LINGER_S, TenantFeeds
from control_plane.events.tenant_tap import TenantTap
from control_plane.jobs.domain.job import Job
from control_plane.jobs.domain.job_view import view_of
from control_plane.metering.domain.usage import UsageEvent
from control_plane.metering.metering import Metering
from control_plane.settings import Settings
from control_plane.telemetry.request_counts import EventCount

_OF_A_JOB = ("id", "state", "model", "class", "attempts", "submitted_at", "started_at", "ended_at", "status", "error")
"""What a tenant's stream tells of a job that has ended: neither where its files are nor what is to be told to whom."""
_CLOSE_TIMEOUT_S = 0.3
"""Time to publish what still waits at a stop; a worker has half a second left after its usage is stored."""


def gateway_source() -> str:
    """Return the source of this host's events."""
    return source_of_gateway(quote(socket.gethostname(), safe=""))


def store_name(state_url: SecretStr | None, state_dir: Path) -> str:
    """Return a short name of the store, which all gateways that share it give it."""
    place = f"{socket.gethostname()}:{state_dir.resolve()}"
    if state_url is not None:
        from control_plane.storage.redis import place_of  # here: as in `stores`

        place = place_of(state_url, setting="--state-url")
    return hashlib.sha256(place.encode()).hexdigest()[:8]


def make_event_streams(settings: Settings) -> EventStreams | None:
    """Make the streams of `events_url`, without connecting; None without one. Raises StartupError."""
    events = settings.events
    if events.events_url is None:
        return None
    from control_plane.events.adapters.redis_streams import make_redis_streams  # here: as in `stores`

    store = store_name(settings.state.state_url, settings.process.state_dir)
    return make_redis_streams(events.events_url, keep=events.events_keep, store=store, cache_url=settings.cache.cache_url)


class RequestEvents:
    """Records of one process's requests, for subscribers: nothing is recorded while there are none."""

    def __init__(self, settings: Settings, metering: Metering, *, is_publisher: bool) -> None:
        """`is_publisher` is False in a process that answers no requests. Raises StartupError."""
        self._metering = metering
        encode = RequestEncoder(gateway_source())
        self.tap = RequestTap(encode)
        is_worker = is_publisher and settings.process.workers > 1  # its parent has the feeds, and it has copies
        self.tenants = TenantFeeds(linger_s=0.0 if is_worker else LINGER_S)
        self.tenant_tap = TenantTap()
        self._streams = make_event_streams(settings) if is_publisher else None
        self._queue: EventQueue[UsageEvent] | None = None
        if self._streams is not None:
            self._queue = EventQueue(self._streams, Stream.REQUESTS, encode)
            metering.add_log(self._queue)

    def watch(self, is_watched: bool) -> None:
        """Record requests for readers over the admin API, or no longer."""
        self._metering.remove_log(self.tap)
        if is_watched:
            self._metering.add_log(self.tap)

    def collect_for(self, tenants: frozenset[str]) -> None:
        """Keep what happens to these tenants in this process, who read it, until it is taken from `tenant_tap`; of no others."""
        self.tenant_tap.follow(tenants)
        self._metering.remove_log(self.tenant_tap)
        if tenants:
            self._metering.add_log(self.tenant_tap)

    def job_ended(self, job: Job) -> None:
        """Tell the job's tenant that it has ended, where somebody reads that. Chunks of batches are nobody's jobs."""
        if self.tenant_tap.is_used and not job.is_of_batch:
            told = view_of(job, None)
            self.tenant_tap.job_ended(job.tenant, job.ended_s or job.submitted_s, {name: told[name] for name in _OF_A_JOB if name in told})

    async def run(self) -> None:
        """Publish until cancelled; return if there is nowhere to."""
        if self._queue is not None:
            await self._queue.run()

    async def close(self) -> None:
        """Publish what waits, and disconnect; `run` must have ended."""
        if self._queue is not None and self._streams is not None:
            await self._queue.close(_CLOSE_TIMEOUT_S)
            await self._streams.close()

    def counts(self) -> tuple[EventCount, ...]:
        """Return what became of this process's records."""
        published, dropped = (self._queue.published, self._queue.dropped) if self._queue is not None else (0, 0)
        return EventCount(Stream.REQUESTS, True, published), EventCount(Stream.REQUESTS, False, dropped + self.tap.dropped)
