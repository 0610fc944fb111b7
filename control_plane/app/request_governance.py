"""What a process's `Governance` stands on: the stores, their mirror, keys of token issuers, costs and metering, with their tasks.

Every process that answers requests has its own: the only one, or each worker and, for the admin API and the metrics port,
their parent.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from uuid import uuid4

from control_plane.admission.adapters.redis_buckets import make_redis_buckets
from control_plane.admission.admission import Admission
from control_plane.admission.concurrency_slots import SlotLimits
from control_plane.admission.domain.fair_queue import QueueLimits
from control_plane.admission.ports import DemandBoard, TokenBuckets
from control_plane.admission.rate_leases import RateLeases
from control_plane.admission.tenant_shares import TenantShares
from control_plane.app.stores import open_demand_board, open_state_store, open_usage_store
from control_plane.auth.access import Access
from control_plane.auth.adapters.jwt import JsonWebTokens, make_json_web_tokens
from control_plane.auth.authentication import Authentication
from control_plane.auth.domain.failed_attempts import FailedAttempts
from control_plane.cache.adapters.redis_cache import make_redis_cache
from control_plane.cache.domain.eviction import KeptAnswers
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
from control_plane.metering.ports import UsageStore
from control_plane.models.fingerprints import Fingerprints
from control_plane.objects.mirror import KnownState
from control_plane.objects.ports import StateStore
from control_plane.settings import Settings
from control_plane.triton.config_name import config_name_in_force
from control_plane.triton.servers import Servers

_log = logging.getLogger(__name__)

_READ_SPENT_EVERY_S = 5.0
_CLOSE_TIMEOUT_S = 2.0
"""For the store to take the last sums before they are written to the state folder instead."""


class Governing:
    """The stores, mirrors and background tasks that one process's `Governance` needs; made by `open_governing`."""

    def __init__(
        self,
        settings: Settings,
        servers: Servers,
        state: StateStore,
        usage: UsageStore,
        board: DemandBoard | None,
        buckets: TokenBuckets | None,
    ) -> None:
        """Without a `board` it admits no requests, without `buckets` it does so alone. Raises StartupError."""
        self.state = state
        self.usage = usage
        self.known = KnownState(state)
        self._settings = settings
        self._tokens = make_json_web_tokens(settings.authentication)
        self.leases = RateLeases(buckets)
        self.admission = _admission(settings, self.known, self.leases)
        self.shares = TenantShares(board, self.admission, uuid4().hex) if board is not None else None
        self.shared_cache = _shared_cache(settings) if board is not None else None
        self.log = RequestLogFile(settings.usage.request_log) if settings.usage.request_log is not None else None
        spill = UsageSpillFolder(settings.process.state_dir / "usage-spill")
        self.metering = Metering(store=usage, spill=spill, max_sums=settings.usage.usage_sums, log=self.log)
        charges = ComputeCharges(self.metering.add_units)
        is_worker = board is not None and settings.process.workers > 1
        self.costs = ComputeCosts(_manifests(settings), servers, charges, settles=not is_worker)
        access = _access(settings, self.known, self._tokens)
        self.governance = Governance(access, self.admission, self.costs, self.metering)

    def response_cache(self, fingerprints: Fingerprints) -> ResponseCache:
        """For the models that this process knows by their `fingerprints`."""
        cache, workers = self._settings.cache, self._settings.process.workers
        return ResponseCache(
            fingerprints if cache.cache_bytes else Fingerprints(),
            KeptAnswers(cache.cache_bytes // workers),
            self.shared_cache,
            generation_of=self.known.cache_generation_of,
            max_entry_bytes=cache.cache_entry_bytes,
            ttl_s=cache.cache_ttl_s,
        )

    async def start(self) -> None:
        """Know everything that requests are answered by. Raises StoreUnavailable."""
        await self.known.start()
        await self._read_spent()
        await self.costs.read_models()
        if self.shares is not None:
            await self.shares.start()

    async def run(self) -> None:
        """Keep up with the stores, issuers and models until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.known.run(), name="known-state")
            tasks.create_task(self.costs.run(), name="compute-costs")
            tasks.create_task(self.metering.run(), name="metering")
            tasks.create_task(self.usage.run(), name="usage-store")
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
                _log.warning("what tenants have used today cannot be read; quotas go by what was known: %s", exc)

    async def _read_spent(self) -> None:
        today, spent = day_of(time.time()), dict[str, float]()
        if any(tenant.daily_compute_units is not None for tenant in self.known.tenants.values()):
            for key, usage in await self.usage.totals(since_day=today, until_day=today):
                spent[key.tenant] = spent.get(key.tenant, 0.0) + usage.compute_units
        self.admission.set_spent(today, spent)


@asynccontextmanager
async def open_governing(
    settings: Settings, servers: Servers, *, admits_requests: bool = True, buckets: TokenBuckets | None = None
) -> AsyncIterator[Governing]:
    """Open the stores and read them; at the end, when `run` has ended, nothing that was metered is left in memory.

    A process that `admits_requests` has a part of the tenants' limits; of rates it draws from the store's buckets, or these.

    Raises:
        StartupError: a store cannot be used or reached, or the settings contradict each other.
    """
    url, folder = settings.state.state_url, settings.process.state_dir
    async with AsyncExitStack() as held:
        try:
            state = await open_state_store(url, folder)
            held.push_async_callback(state.close)
            usage = await open_usage_store(url, folder)
            held.push_async_callback(usage.close)
            board = await open_demand_board(url, folder) if admits_requests else None
            if board is not None:
                held.push_async_callback(board.close)
            if url is not None and admits_requests:
                buckets = make_redis_buckets(url)
                held.push_async_callback(buckets.close)
            governing = Governing(settings, servers, state, usage, board, buckets)
            await governing.start()
        except StoreUnavailable as exc:
            raise StartupError(f"the state store cannot be reached, so nobody's rights are known: {exc}") from exc
        if governing.log is not None:
            held.callback(governing.log.close)
        if governing.shares is not None:
            held.push_async_callback(governing.shares.stop)
            held.push_async_callback(governing.leases.stop)
        if governing.shared_cache is not None:
            held.push_async_callback(governing.shared_cache.close)
        held.push_async_callback(governing.metering.close, _CLOSE_TIMEOUT_S)  # first: a worker has few seconds to end
        yield governing


def _access(settings: Settings, known: KnownState, tokens: JsonWebTokens | None) -> Access:
    is_on = settings.authentication.authentication
    authentication = Authentication(known, tokens, attempts=FailedAttempts()) if is_on else None
    return Access(known, authentication, trusted_proxies=settings.authentication.trusted_proxies)


def _admission(settings: Settings, known: KnownState, leases: RateLeases) -> Admission:
    """Without authentication there is one tenant only, and nothing to share: Triton's own queue does."""
    gateway, workers = settings.gateway, settings.process.workers
    if settings.authentication.authentication:
        alone, shared = gateway.max_in_flight_per_model, gateway.max_in_flight_per_shared_model
    else:
        alone = shared = gateway.max_connections
    slots = SlotLimits(alone=max(1, alone // workers), shared=max(1, min(alone, shared) // workers))
    return Admission(known, slots=slots, queue=QueueLimits(), leases=leases)


def _shared_cache(settings: Settings) -> SharedCache | None:
    cache = settings.cache
    if cache.cache_url is None:
        return None
    if cache.cache_bytes == 0:
        _log.warning("--cache-url is not used: --cache-bytes 0 keeps no answers anywhere")
        return None
    return make_redis_cache(cache.cache_url, state_url=settings.state.state_url, max_value_bytes=cache.cache_entry_bytes)


def _manifests(settings: Settings) -> ModelManifests:
    triton = settings.triton
    sources = [] if settings.is_attached else triton.model_repository
    return ModelManifests(sources, config_name=config_name_in_force(triton.model_config_name), parameters=triton.model_parameter)
