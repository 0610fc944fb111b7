"""The data plane of one process: the HTTP and gRPC frontends and the inference service behind them, wired.

`application` makes one when a single process serves; with `--workers`, `worker` makes one in each worker
process. Starting Triton, loading models and the admin API are not here.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from control_plane.app.data_plane.job_compute import make_job_compute
from control_plane.app.data_plane.jobs import JobServices
from control_plane.app.data_plane.limits import body_limits, grpc_limits, http_limits
from control_plane.app.data_plane.spans import open_spans
from control_plane.app.upstreams.clients import forwarding_of
from control_plane.cache.response_cache import ResponseCache
from control_plane.concurrency.loop_lag import LoopLag
from control_plane.embeddings.embeddings import Embeddings
from control_plane.embeddings.text_models import TextModels
from control_plane.events.tenant_feeds import TenantFeeds
from control_plane.fleet.domain.counts import FleetCounts
from control_plane.fleet.routing.dispatch import FleetDispatcher
from control_plane.frontends.batches.http import BatchesHttp
from control_plane.frontends.common.body_budget import BodyBudget
from control_plane.frontends.common.http_errors import render_error
from control_plane.frontends.common.read_scheduler import ReadScheduler
from control_plane.frontends.common.status import client_status_of
from control_plane.frontends.data_http import DataHttp
from control_plane.frontends.grpc.server import GrpcServer
from control_plane.frontends.http.requests.sink import streams_none
from control_plane.frontends.http.server import HttpServer
from control_plane.frontends.jobs.compute import JobCompute
from control_plane.frontends.jobs.http import JobsHttp
from control_plane.frontends.kserve.grpc import V2Grpc
from control_plane.frontends.kserve.grpc_infer import parts_of
from control_plane.frontends.kserve.http import V2Http
from control_plane.frontends.kserve.http_infer import HttpInferContext
from control_plane.frontends.kserve.services import KServeServices
from control_plane.frontends.openai import OpenaiHttp
from control_plane.frontends.tenant_events import TenantEventsHttp
from control_plane.generation.adapters.template_process import TemplateProcesses
from control_plane.generation.domain.completion_request import GenerationLimits
from control_plane.generation.generation import Generation
from control_plane.generation.generative_models import GenerativeModels
from control_plane.host.network.exposure import allowed_hosts
from control_plane.host.network.listening import allow_restart
from control_plane.host.network.tls import GRPC, HTTP, Tls
from control_plane.inference.caching.cached_inference import CachedInference
from control_plane.inference.dispatch.dispatch import Dispatch
from control_plane.inference.dispatch.region_failover import RegionFailover
from control_plane.inference.dispatch.single_server import SingleServerDispatch
from control_plane.inference.domain.observation import Observation
from control_plane.inference.governance import Governance, Meter
from control_plane.inference.inference import InferenceService
from control_plane.inference.model_configuration.time_left import TimeLeft
from control_plane.inference.model_names import ModelNames
from control_plane.inference.retries.queries_of_death import QueriesOfDeath
from control_plane.inference.sharded_models import ShardedModels
from control_plane.jobs.attempts import envelope_bytes
from control_plane.models.fingerprints import Fingerprints
from control_plane.models.ports import ModelAdministration
from control_plane.regions.regions import Regions
from control_plane.rollout.shadow import ShadowCopies
from control_plane.settings import GatewaySettings
from control_plane.telemetry.adapters.request_counter import RequestCounter
from control_plane.telemetry.request_counts import (
    BudgetCount,
    CacheStatusCount,
    DeliveryCount,
    FleetRefusalCount,
    HedgeCount,
    QueryOfDeathCounts,
    RegionCount,
    RequestCounts,
    RetryCount,
    ShedCount,
    UnitsCount,
    WaitHistogram,
)
from control_plane.telemetry.tracing import Tracer
from control_plane.triton.servers import Servers

_FIRST_LIST_TIMEOUT_S = 1.0
"""Longest wait for Triton's list of models before the ports open."""


@dataclass(frozen=True, slots=True)
class DataSockets:
    """The bound sockets of the HTTP and gRPC frontends; the Unix sockets listen already."""

    http: socket.socket
    grpc: socket.socket
    http_unix: socket.socket | None = None
    grpc_unix: socket.socket | None = None


class DataPlane:
    """The HTTP and gRPC frontends of one process, wired to the services behind them."""

    def __init__(
        self,
        gateway: GatewaySettings,
        sockets: DataSockets,
        tls: Tls | None,
        *,
        governance: Governance,
        models: ModelAdministration,
        servers: Servers,
        cache: ResponseCache,
        fingerprints: Fingerprints,
        tenants: TenantFeeds,
        dispatch: FleetDispatcher | None = None,
        jobs: JobServices | None = None,
        regions: Regions | None = None,
    ) -> None:
        """Wire everything; `gateway` has this process's share of the limits, within its file descriptors. Raises StartupError."""
        self._gateway, self._governance, self._jobs, self._tenants = gateway, governance, jobs, tenants
        self._sockets, self._tls = sockets, tls
        self._servers, self._fingerprints = servers, fingerprints
        self._models = ModelNames(
            servers, is_described=None if dispatch is None or dispatch.catalogue is None else dispatch.catalogue.knows
        )
        self._counter = RequestCounter(max_models=gateway.max_metric_models, existing=self._models)
        self._cache, self._cached = cache, CachedInference(cache)
        self._spans = open_spans(gateway)
        self._tracer = None if self._spans is None else Tracer(self._spans, gateway.trace_ratio, time.monotonic)
        self._inference = self._make_inference(dispatch)
        self._inference.running.records_later = True
        if (catalogue := self._inference.dispatch.catalogue) is not None:
            governance.admission.slots.background.has_idle_server = catalogue.has_idle_server
        self._time_left = self._inference.time_left = TimeLeft(self._inference.dispatch, fingerprints, is_loaded=self._is_loaded())
        self._regions = regions
        if regions is not None:
            self._spill_over_to(regions)
        self._shadow = self._inference.shadow = self._make_shadow_copies()
        self._text_models = TextModels(self._inference.dispatch, fingerprints, governance.access)
        self._part_of = parts_of(body_limits(gateway), forwarding_of(gateway), governance.access)
        self._embeddings = self._embeddings_of(self._inference)
        self._templates = TemplateProcesses(max_prompt_bytes=gateway.max_prompt_bytes)
        self._generation = self._make_generation()
        budget = BodyBudget(gateway.max_buffered_bytes)
        if dispatch is not None:
            dispatch.sharded = ShardedModels(self._inference, budget, max_bytes=gateway.max_body_bytes)
        self._reads, self._lag = ReadScheduler(), LoopLag()
        self._hosts = allowed_hosts(gateway.host, gateway.allowed_hosts, authentication=governance.access.is_on)
        kserve = self._make_kserve_services(gateway, budget, models)
        self._http = self._make_http_frontend(gateway, kserve)
        self._grpc = self._make_grpc_frontend(gateway, kserve)

    async def listen(self, tasks: asyncio.TaskGroup) -> None:
        """Start listening; the connections' tasks run in `tasks`."""
        sockets, tls = self._sockets, self._tls
        # If Triton hangs, the ports open all the same: requests can be served and counted before its models are known.
        with suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_LIST_TIMEOUT_S):
                await self._models.refresh()
        self._cached.begin(tasks)
        self._embeddings.begin(tasks)
        await self._http.listen(tasks, allow_restart(sockets.http), tls.context(HTTP) if tls else None)
        await self._grpc.listen(tasks, allow_restart(sockets.grpc), tls.context(GRPC) if tls else None)
        if sockets.http_unix is not None:
            await self._http.listen(tasks, sockets.http_unix)
        if sockets.grpc_unix is not None:
            await self._grpc.listen(tasks, sockets.grpc_unix)
        if self._jobs is not None:
            self._jobs.open()

    async def run(self) -> None:
        """Refresh the list of Triton's models, ask for configurations, copy requests, measure the loop's lag, and run jobs, until
        cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._models.run(), name="model-names")
            tasks.create_task(self._time_left.run(), name="time-left")
            tasks.create_task(self._shadow.run(), name="shadow")
            tasks.create_task(self._lag.run(), name="loop-lag")
            if self._regions is not None:
                tasks.create_task(self._regions.run(), name="regions")
            if self._jobs is not None:
                tasks.create_task(self._jobs.run(), name="jobs")

    def announce_drain(self) -> None:
        """Say that this gateway is not ready, and ask HTTP clients to connect elsewhere; everything is still
        served."""
        self._servers.is_stopping = True
        self._http.announce_drain()

    async def drain(self, timeout_s: float) -> None:
        """Accept no new connections, let requests in flight finish for at most `timeout_s`, and refuse the
        rest. A second call with less time cuts the first one short."""
        self._servers.is_stopping = True
        self._tenants.close()
        jobs = () if self._jobs is None else (self._jobs.drain(timeout_s),)
        await asyncio.gather(self._http.drain(timeout_s), self._grpc.drain(timeout_s), *jobs)
        self._inference.verbatim.flush_counts()
        await self._templates.close()

    async def close(self) -> None:
        """Send the last spans, for two seconds at most; after the drain, which is over before, and beside all else that ends then."""
        if self._spans is not None:
            await asyncio.to_thread(self._spans.close)

    @property
    def deaths(self) -> QueriesOfDeath:
        """This process's quarantine for requests under which processes die."""
        return self._inference.dispatch.deaths

    def awaited(self) -> Iterator[tuple[str, str, float]]:
        """Yield the server, the model and the time it was sent of each model's oldest request, of those that
        have waited for long."""
        return self._inference.dispatch.awaited()

    def given_up(self) -> Iterator[tuple[str, str, float]]:
        """Yield the same of each replica's oldest request that its caller gave up, of a fleet's."""
        return dispatch.given_up() if isinstance(dispatch := self._inference.dispatch, FleetDispatcher) else iter(())

    def streaming(self) -> Iterator[tuple[str, str]]:
        """Yield the server and the model of each replica that goes on with a streamed response."""
        return self._inference.dispatch.streams.going_on()

    def take_observed(self) -> tuple[Observation, ...]:
        """Return what became of rollouts' requests since the last call."""
        return self._inference.observations.take()

    def counts(self) -> RequestCounts:
        """Collect this process's request counters for the metrics page."""
        self._inference.verbatim.flush_counts()  # count requests that have ended since, but were not yet accounted for
        admission, shared, dispatch = self._governance.admission, self._cache.shared, self._inference.dispatch
        catalogue = dispatch.catalogue if isinstance(dispatch, FleetDispatcher) else None
        fleet = FleetCounts() if catalogue is None else catalogue.counts
        deliveries = None if self._jobs is None else self._jobs.deliveries
        sent = {} if self._regions is None else self._regions.totals
        failover = self._inference.region_failover
        return replace(
            self._counter.counts(in_flight=self._inference.in_flight),
            refused=tuple(FleetRefusalCount(*each) for each in fleet.refused.items()),
            waited=WaitHistogram(tuple(fleet.waits.buckets), fleet.waits.seconds),
            hedges=tuple(HedgeCount(*each) for each in fleet.hedges.items()),
            hedged_units=fleet.hedged_units,
            copied=self._shadow.counts.results(),
            copied_took=self._shadow.counts.durations(),
            budgets=tuple(BudgetCount(*key, count) for key, count in self._inference.dial.totals.items()),
            deliveries=() if deliveries is None else tuple(DeliveryCount(*key, count) for key, count in deliveries.outcomes.items()),
            regions=tuple(RegionCount(region, verdict.value, count) for (region, verdict), count in sent.items()),
            guests=0 if failover is None else failover.guests,
            shed=tuple(ShedCount(*key, count) for key, count in admission.counts.items()),
            loop_late_s=self._lag.most_s,
            units=units_of(self._governance.meter),
            unmetered=self._governance.meter.dropped,
            spans_lost=0 if self._spans is None else self._spans.lost,
            cached=tuple(CacheStatusCount(*key, count) for key, count in self._cache.counts.items()),
            holding=self._cache.holding,
            shared_cache=replace(shared.counts) if shared is not None else None,
            shared_cache_away=int(shared is not None and shared.is_bypassed),
            shared_cache_answer_s=0.0 if shared is None else shared.answer_s,
            retries=tuple(RetryCount(*key, count) for key, count in dispatch.retries.totals.items()),
            queries_of_death=QueryOfDeathCounts(dispatch.deaths.found, dispatch.deaths.refused),
        )

    def _is_loaded(self) -> Callable[[str], bool]:
        """Return what says of a model whether it needs no load."""
        catalogue = self._inference.dispatch.catalogue
        return self._models.__contains__ if catalogue is None else catalogue.is_loaded

    def _spill_over_to(self, regions: Regions) -> None:
        self._inference.region_failover = RegionFailover(regions, self._servers, self._inference.dispatch)
        if isinstance(self._inference.dispatch, SingleServerDispatch):
            self._inference.dispatch.may_leave = self._inference.region_failover.may_leave

    def _make_shadow_copies(self) -> ShadowCopies:
        access, slots = self._governance.access, self._governance.admission.slots
        dispatch, observations = self._inference.dispatch, self._inference.observations
        return ShadowCopies(access, dispatch, observations, is_idle=lambda model: slots.of(model).are_idle)

    def _make_generation(self) -> Generation:
        return Generation(
            inference=self._inference,
            models=GenerativeModels(self._inference.dispatch, self._fingerprints, self._governance.access),
            templates=self._templates,
            limits=GenerationLimits(self._gateway.max_prompt_bytes, self._gateway.max_completion_tokens),
            meter=self._governance.meter,
        )

    def _make_kserve_services(self, gateway: GatewaySettings, budget: BodyBudget, models: ModelAdministration) -> KServeServices:
        return KServeServices(
            inference=self._inference,
            access=self._governance.access,
            servers=self._servers,
            models=models,
            budget=budget,
            limits=body_limits(gateway),
            forwarding=forwarding_of(gateway),
            read_timeout_s=gateway.request_timeout_s,
            allow_shared_memory=gateway.allow_shared_memory,
        )

    def _make_http_frontend(self, gateway: GatewaySettings, kserve: KServeServices) -> HttpServer:
        budget = kserve.budget
        jobs = None if self._jobs is None else self._make_jobs_frontend(self._jobs, budget)
        v2 = V2Http(kserve, jobs=jobs, events=TenantEventsHttp(self._tenants))
        if self._jobs is not None and jobs is not None:
            jobs.compute = self._compute_jobs(self._jobs, v2.context, budget)
        application = DataHttp(v2, self._make_openai_frontend())
        limits = http_limits(gateway, self._governance.access)
        if self._jobs is not None:
            limits = replace(limits, max_upload_bytes=self._jobs.max_upload_bytes, envelope_bytes=envelope_bytes)
        return HttpServer(
            application.answer,
            render_error,
            limits,
            admit=application.admit,
            streams=streams_none if self._jobs is None else application.streams,
            verbatim=v2.verbatim,
            budget=budget,
            hosts=self._hosts,
            reads=self._reads,
        )

    def _make_jobs_frontend(self, services: JobServices, budget: BodyBudget) -> JobsHttp:
        return JobsHttp(
            services.jobs,
            webhooks=services.webhooks,
            files=services.callers_files,
            budget=budget,
            max_input_bytes=self._gateway.max_body_bytes,
            forwarding=forwarding_of(self._gateway),
        )

    def _make_openai_frontend(self) -> OpenaiHttp:
        jobs = self._jobs
        return OpenaiHttp(
            inference=self._inference,
            generation=self._generation,
            embeddings=self._embeddings,
            models=self._text_models,
            access=self._governance.access,
            read_timeout_s=self._gateway.request_timeout_s,
            batches=None if jobs is None else BatchesHttp(jobs.files, jobs.batches, webhooks=jobs.webhooks),
        )

    def _compute_jobs(self, services: JobServices, context: HttpInferContext, budget: BodyBudget) -> JobCompute:
        """Have this process compute jobs, for its own runner and for job workers; return what computes them."""
        services.jobs.require_model = self._inference.require_model
        services.batches.require_model = self._text_models.require
        compute = make_job_compute(
            context,
            budget,
            governance=self._governance,
            dispatch=self._inference.dispatch,
            fingerprints=self._fingerprints,
            is_loaded=self._is_loaded(),
            inference_with=self._inference.governed_by,
            embeddings_of=self._embeddings_of,
            max_attempts=services.max_attempts,
        )
        services.run_by(compute, weight_of=self._governance.access.weight_of)
        return compute

    def _make_inference(self, dispatch: Dispatch | None) -> InferenceService:
        return InferenceService(
            servers=self._servers,
            recorder=self._counter,
            governance=self._governance,
            cached=self._cached,
            dispatch=dispatch,
            models=self._models,
            client_status_of=client_status_of,
            default_timeout_s=self._gateway.request_timeout_s,
            allow_shared_memory=self._gateway.allow_shared_memory,
            tracer=self._tracer,
        )

    def _embeddings_of(self, inference: InferenceService) -> Embeddings:
        models, cache, timeout_s = self._text_models, self._cache, self._gateway.request_timeout_s
        return Embeddings(inference=inference, models=models, cache=cache, default_timeout_s=timeout_s, part_of=self._part_of)

    def _make_grpc_frontend(self, gateway: GatewaySettings, kserve: KServeServices) -> GrpcServer:
        limits = grpc_limits(gateway, self._governance.access)
        return GrpcServer(V2Grpc(kserve), limits, kserve.budget, hosts=self._hosts, reads=self._reads)


def units_of(meter: Meter) -> tuple[UnitsCount, ...]:
    """Return what a process's meter has added up for the metrics."""
    return tuple(UnitsCount(*each) for each in meter.units.items())
