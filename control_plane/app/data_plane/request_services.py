"""Wires what decides about and accounts for requests: stores and their mirror, authentication, admission,
metering, cache.

Every process that answers requests has its own: the single process, or each worker, and their parent for the
admin API and the metrics page. `open_request_services` opens it, `application` and `worker` run it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from uuid import uuid4

from control_plane.admission.admission import Admission
from control_plane.admission.concurrency_limiter import SlotLimits
from control_plane.admission.domain.fair_queue import QueueLimits
from control_plane.admission.ports import DemandBoard, TokenBuckets
from control_plane.admission.rate_leases import RateLeases
from control_plane.admission.tenant_shares import TenantShares
from control_plane.admission.waiting_room import WaitingLimits
from control_plane.app.data_plane.event_streams import RequestEvents
from control_plane.app.data_plane.jobs import JobServices, open_jobs
from control_plane.app.stores import open_demand_board, open_state_store, open_usage_store
from control_plane.auth.access import Access
from control_plane.auth.authentication import Authentication
from control_plane.auth.domain.auth_backoff import AuthBackoff
from control_plane.auth.ports import TokenVerifier
from control_plane.cache.domain.eviction import EvictingCache
from control_plane.cache.ports import SharedCache
from control_plane.cache.response_cache import ResponseCache
from control_plane.core.errors import StartupError, StoreUnavailable
from control_plane.inference.governance import Governance
from control_plane.metering.adapters.model_manifests import ModelManifests
from control_plane.metering.adapters.request_log import RequestLogFile
from control_plane.metering.adapters.usage_spill import UsageSpillFolder
from control_plane.metering.compute_charges import ComputeCharges
from control_plane.metering.compute_costs import ComputeCosts
from control_plane.metering.domain.usage import day_of
from control_plane.metering.metering import Metering
from control_plane.metering.ports import ModelCosts, UsageStore
from control_plane.models.fingerprints import Fingerprints
from control_plane.objects.mirror import ObjectMirror
from control_plane.objects.ports import StateStore
from control_plane.settings import AuthenticationSettings, Settings
from control_plane.triton.config_name import config_name_in_force
from control_plane.triton.servers import Servers

_log = logging.getLogger(__name__)

_READ_SPENT_EVERY_S = 5.0
_CLOSE_TIMEOUT_S = 2.0
"""Time for the store to accept the last usage sums at the end; after it they are written to the state folder
instead."""


class RequestServices:
    """The stores, their mirror and the background tasks behind one process's `Governance`; made by
    `open_request_services`.
    """

    def __init__(
        self,
        settings: Settings,
        servers: Servers,
        state: StateStore,
        usage: UsageStore,
        board: DemandBoard | None,
        buckets: TokenBuckets | None,
        jobs: JobServices | None,
        costs: ModelCosts | None = None,
    ) -> None:
        """Wire the services. Raises StartupError.

        Without `board` (the parent of workers) the process admits no requests; without `buckets` (SQLite, one
        process) it shares rate limits with nobody. Without `costs` models' costs are read from this machine's
        folders.
        """
        self.state = state
        self.jobs = jobs
        self.usage = usage
        self.known = ObjectMirror(state)
        if jobs is not None:
            jobs.deliver_by(self.known.webhook_secrets_of)
        self._settings = settings
        self._tokens = _tokens(settings.authentication)
        self.leases = RateLeases(buckets)
        self.admission = _admission(settings, servers, self.known, self.leases)
        self.shares = TenantShares(board, self.admission, uuid4().hex) if board is not None else None
        self.shared_cache = _shared_cache(settings) if board is not None else None
        self.log = RequestLogFile(settings.usage.request_log) if settings.usage.request_log is not None else None
        spill = UsageSpillFolder(settings.process.state_dir / "usage-spill")
        self.metering = Metering(store=usage, spill=spill, max_sums=settings.usage.usage_sums, log=self.log)
        self.events = RequestEvents(settings, self.metering, is_publisher=board is not None)
        if jobs is not None:
            jobs.on_ended = self.events.job_ended
            jobs.jobs.room.processes = lambda: self.admission.processes
        charges = ComputeCharges(self.metering.add_units)
        # Workers only collect charges and send them to the parent, which divides Triton's compute time among
        # all of them.
        is_worker = board is not None and settings.process.workers > 1
        self.costs = ComputeCosts(costs or _manifests(settings), servers, charges, settles=not is_worker)
        access = _access(settings, self.known, self._tokens)
        self.governance = Governance(access, self.admission, self.costs, self.metering)

    def response_cache(self, fingerprints: Fingerprints) -> ResponseCache:
        """Make the response cache of this process; responses are cached for models whose `fingerprints` are
        known.
        """
        cache, workers = self._settings.cache, self._settings.process.workers
        return ResponseCache(
            fingerprints if cache.cache_bytes else Fingerprints(),  # no model is known: nothing is cached
            EvictingCache(cache.cache_bytes // workers),
            self.shared_cache,
            generation_of=self.known.purge_generation_of,
            max_entry_bytes=cache.cache_entry_bytes,
            ttl_s=cache.cache_ttl_s,
        )

    def degraded(self) -> list[str]:
        """Return what does not work as it should while requests are served, a sentence each."""
        return [sentence for sentence in (self.known.regression, self.metering.trouble) if sentence]

    async def start(self) -> None:
        """Read keys, tenants, routes, prices and today's usage, before the first request. Raises
        StoreUnavailable.
        """
        await self.known.start()
        await self._read_spent()
        await self.costs.read_models()
        if self.shares is not None:
            await self.shares.start()

    async def run(self) -> None:
        """Run the background tasks until cancelled: they follow the stores, token issuers and models, and
        write usage.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.known.run(), name="known-state")
            tasks.create_task(self.costs.run(), name="compute-costs")
            tasks.create_task(self.metering.run(), name="metering")
            tasks.create_task(self.usage.run(), name="usage-store")
            tasks.create_task(self.events.run(), name="request-events")
            tasks.create_task(self._follow_spent(), name="daily-quotas")
            if self.shares is not None:
                tasks.create_task(self.shares.run(), name="tenant-shares")
                tasks.create_task(self.leases.run(), name="rate-leases")
            if self.shared_cache is not None:
                tasks.create_task(self.shared_cache.run(), name="shared-cache")
            if self._tokens is not None:
                tasks.create_task(self._tokens.run(), name="issuer-keys")

    async def _follow_spent(self) -> None:
        while True:
            await asyncio.sleep(_READ_SPENT_EVERY_S)
            try:
                await self._read_spent()
            except StoreUnavailable as exc:
                _log.warning("today's usage cannot be read; daily quotas use the last known sums: %s", exc)

    async def _read_spent(self) -> None:
        if self.metering.trouble:
            return  # the stored sums lack what waits here: by them this process would forget what it has counted itself
        today, spent = day_of(time.time()), dict[str, float]()
        if any(tenant.daily_compute_units is not None for tenant in self.known.tenants.values()):
            for key, usage in await self.usage.totals(since_day=today, until_day=today):
                spent[key.tenant] = spent.get(key.tenant, 0.0) + usage.compute_units
        self.admission.set_spent(today, spent)


@asynccontextmanager
async def open_request_services(
    settings: Settings,
    servers: Servers,
    *,
    admits_requests: bool = True,
    buckets: TokenBuckets | None = None,
    costs: ModelCosts | None = None,
) -> AsyncIterator[RequestServices]:
    """Open the stores and read them; on exit, after `run` has ended, write all remaining usage and close
    them.

    A process that `admits_requests` enforces a share of the tenants' limits; for rate limits it draws tokens
    from the store's token buckets, or from `buckets` if given (a worker's, which ask the parent).

    Raises:
        StartupError: a store cannot be used or reached, or the settings contradict each other.
    """
    url, folder = settings.state.state_url, settings.process.state_dir
    async with AsyncExitStack() as held:
        try:
            state = await open_state_store(url, folder)
            held.push_async_callback(state.close)
            usage = await open_usage_store(url, folder, settings.usage.usage_keep_days, settings.events.events_keep)
            held.push_async_callback(usage.close)
            board = await open_demand_board(url, folder) if admits_requests else None
            if board is not None:
                held.push_async_callback(board.close)
            if url is not None and admits_requests:
                from control_plane.admission.adapters.redis_buckets import make_redis_buckets  # here: as in `stores`

                buckets = make_redis_buckets(url)
                held.push_async_callback(buckets.close)
            jobs = await held.enter_async_context(open_jobs(settings, usage))
            services = RequestServices(settings, servers, state, usage, board, buckets, jobs, costs)
            await services.start()
        except StoreUnavailable as exc:
            raise StartupError(f"the state store cannot be reached, so no caller's permissions are known: {exc}") from exc
        if services.log is not None:
            held.callback(services.log.close)
        if services.shares is not None:
            held.push_async_callback(services.shares.stop)
            held.push_async_callback(services.leases.stop)
        if services.shared_cache is not None:
            held.push_async_callback(services.shared_cache.close)
        held.push_async_callback(services.events.close)
        # Pushed last, so closed first: a worker has few seconds to end, and unwritten usage is what must not
        # be lost.
        held.push_async_callback(services.metering.close, _CLOSE_TIMEOUT_S)
        yield services


def _tokens(settings: AuthenticationSettings) -> TokenVerifier | None:
    """Return the verifier of the configured issuer's tokens; None without one. Raises StartupError."""
    if not (settings.jwks_url or settings.jwt_issuer or settings.jwt_audience):
        return None
    from control_plane.auth.adapters.jwt import make_json_web_tokens  # here: few have an issuer, all would import cryptography

    return make_json_web_tokens(settings)


def _access(settings: Settings, known: ObjectMirror, tokens: TokenVerifier | None) -> Access:
    is_on = settings.authentication.authentication
    authentication = Authentication(known, tokens, attempts=AuthBackoff()) if is_on else None
    return Access(known, authentication, trusted_proxies=settings.authentication.trusted_proxies)


def _admission(settings: Settings, servers: Servers, known: ObjectMirror, leases: RateLeases) -> Admission:
    """Make the admission service. Without authentication there is one tenant, and a model may have half of
    all connections to Triton, and for sequences under way a quarter: the rest is for other models and health.
    """
    gateway, workers = settings.gateway, settings.process.workers
    named = max(1, settings.fleet.servers, settings.triton.triton_url.count(",") + 1)
    if settings.authentication.authentication:
        alone, shared = gateway.max_in_flight_per_model, gateway.max_in_flight_per_shared_model
    else:
        alone = shared = gateway.max_upstream_connections // 2 * named
    slots = SlotLimits(alone=max(1, alone // workers), shared=max(1, min(alone, shared) // workers))
    half = max(1, slots.alone // 2)
    sequence_slots = slots if settings.authentication.authentication else SlotLimits(half, half)
    share = 2 if settings.authentication.authentication else 1  # without, there is one tenant
    requests, size_bytes = max(2, gateway.max_waiting_requests // workers), gateway.max_buffered_bytes // workers // 2
    waiting = WaitingLimits(requests, requests // share, size_bytes, size_bytes // share)
    return Admission(
        known,
        slots=slots,
        sequence_slots=sequence_slots,
        queue=QueueLimits(),
        waiting=waiting,
        leases=leases,
        servers=lambda: max(1, len(servers.answering)),  # not those that settings name: servers join and leave
    )


def _shared_cache(settings: Settings) -> SharedCache | None:
    cache = settings.cache
    if cache.cache_url is None:
        return None
    if cache.cache_bytes == 0:
        _log.warning("--cache-url is not used: --cache-bytes 0 turns the response cache off")
        return None
    from control_plane.cache.adapters.redis_cache import make_redis_cache  # here: as in `stores`

    return make_redis_cache(cache.cache_url, state_url=settings.state.state_url, max_value_bytes=cache.cache_entry_bytes)


def _manifests(settings: Settings) -> ModelManifests:
    triton = settings.triton
    sources = [] if settings.is_attached else triton.model_repository
    return ModelManifests(sources, config_name=config_name_in_force(triton.model_config_name), parameters=triton.model_parameter)
