"""The composition root of `tidegate serve`: wires every part and runs it; only `app` knows which adapter
implements which port.

Start: bind ports -> Triton up -> models loaded -> listen -> write `endpoints.json`. Stop, on SIGTERM or
SIGINT, in reverse: not ready -> pause -> drain the frontends (`stopping.py`) -> close the pools -> end Triton.
The frontends run in this process (`data_plane.py`) or, with `--workers`, in worker processes
(`workers/parent/workers.py`); everything else runs here.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

from control_plane.admin.events.feed import EventSources
from control_plane.admin.events.only_triton import OnlyTritonEvents
from control_plane.admin.idempotency.ports import IdempotencyRecords
from control_plane.app.data_plane.data_plane import DataPlane, DataSockets
from control_plane.app.data_plane.limits import connection_caps, http_limits
from control_plane.app.data_plane.regions import make_regions
from control_plane.app.data_plane.request_services import RequestServices, open_request_services
from control_plane.app.gateway.admin_stores import opened_audit_log, opened_idempotency_records
from control_plane.app.gateway.events import EventServices, open_event_services
from control_plane.app.gateway.metrics import Counted, make_metrics_page
from control_plane.app.gateway.rollouts import RolloutServices
from control_plane.app.gateway.start_checks import refuse_exposure, require_usable_cpus
from control_plane.app.stopping import StopSignals, stop_serving
from control_plane.app.stores import wait_for_state_store
from control_plane.app.upstreams.servers import Tritons
from control_plane.audit.domain.entry import Actor
from control_plane.audit.ports import AuditLog
from control_plane.audit.trail import AuditTrail
from control_plane.auth.access import Access
from control_plane.auth.keys import Keys
from control_plane.cache.purges import Purges
from control_plane.core.errors import StartupError
from control_plane.frontends.common.http_errors import render_error
from control_plane.frontends.http.limits import HttpLimits
from control_plane.frontends.http.server import HttpServer
from control_plane.host.cpu_affinity import pin_worker
from control_plane.host.memory.garbage import garbage_collector_paused
from control_plane.host.network.exposure import allowed_hosts
from control_plane.host.network.listening import allow_restart, share_port
from control_plane.host.network.service_sockets import ServiceSockets
from control_plane.host.network.tls import HTTP, make_admin_tls, make_tls, on_hangup
from control_plane.host.network.unix_socket import UnixSocket
from control_plane.host.state_dir import StateDir
from control_plane.jobs.webhooks.secrets import WebhookSecrets
from control_plane.metering.reports import UsageService
from control_plane.models.adapters.build_program import ModelBuildProgram
from control_plane.models.adapters.profile import with_profile
from control_plane.models.builds import ModelBuilds
from control_plane.models.fingerprints import Fingerprints
from control_plane.models.model_service import LoadFailure, ModelService
from control_plane.objects.audited_store import AuditedStore
from control_plane.objects.mirrored_store import MirroredStore
from control_plane.objects.objects import Objects
from control_plane.settings import Settings
from control_plane.storage.store_record import write_store_record
from control_plane.workers.adapters.process import WorkerProcessLauncher
from control_plane.workers.parent.fleet_publisher import FleetPublisher
from control_plane.workers.parent.workers import Workers

if TYPE_CHECKING:
    from control_plane.operator.controller import ModelController

_ADMIN_DRAIN_S = 1.0
"""Seconds that admin API calls in flight get after the data ports have been drained.

All that follows a drain takes 6 s at most: 1 s for the last refusals on the data ports (`workers/parent/workers`), half of
one for the last charges, and 4.5 s for Triton (`triton/supervisor`), while all else ends beside it.
"""

Announce = Callable[[Mapping[str, str], list[LoadFailure]], None]


class App:
    """The application of one `tidegate serve`: the constructor wires it and binds the ports, `run` serves
    until a signal.
    """

    def __init__(self, settings: Settings) -> None:
        """Wire everything that needs no I/O and bind every port. Raises StartupError."""
        # The ports come before everything slow: a port that is taken is reported at once, not after Triton's
        # start.
        refuse_exposure(settings)
        require_usable_cpus(settings)
        settings = self._settings = with_profile(settings)
        self._tls = make_tls(settings.tls)
        self._admin_tls = make_admin_tls(settings.tls)
        self._sockets = ServiceSockets(settings)
        self._is_open = False
        self._admin: HttpServer | None = None
        try:
            self._wire()
        except StartupError:
            self._sockets.close()
            raise

    def _wire(self) -> None:
        self._fingerprints = Fingerprints()
        self._workers = self._make_workers() if self._settings.process.workers > 1 else None
        if self._workers is None:
            self._tritons = Tritons(self._settings, self._fingerprints, self._fingerprints)
        else:
            # Requests are served elsewhere: the workers are told where Triton is and what is loaded.
            self._tritons = Tritons(self._settings, self._workers.upstream, self._workers.fingerprints)
            self._connect(self._workers, self._tritons)
        self._servers = self._tritons.servers
        self._regions = make_regions(self._settings)
        self._models = self._tritons.models
        self._builds = self._make_builds()

    @staticmethod
    def _connect(workers: Workers, tritons: Tritons) -> None:
        """Have the workers hear of repairs and replicas, and the Tritons of what the workers find out and wait for."""
        tritons.servers.under_repair.follow(workers.upstream.repairing)
        workers.suspect = tritons.suspect or workers.suspect
        workers.findings.follow = tritons.found_out
        tritons.follow_awaited(workers.oldest_s)
        if tritons.fleet is not None:
            workers.join_fleet(tritons.fleet.share_with(FleetPublisher))

    def _service_limits(self, access: Access) -> HttpLimits:
        return replace(http_limits(self._settings.gateway, access), max_connections=self._caps.service)

    def _wire_ports(self, services: RequestServices, audit: AuditLog, records: IdempotencyRecords, events: EventServices) -> None:
        """Make the servers of the ports; needs the stores, so it comes after they are open."""
        self._caps = connection_caps(self._settings.gateway, self._settings.admin, servers=len(self._servers.members))
        self._data_plane = None if self._workers else self._make_data_plane(services)
        serving = self._workers or self._data_plane
        assert serving is not None
        self._tritons.tell_nodes(serving.awaited, services.costs.read_soon)
        self._rollouts = self._make_rollouts(services)
        self._counted = Counted(serving, services, events)
        page = make_metrics_page(self._settings, self._counted, self._tritons, self._rollouts.rollouts, self._regions)
        gateway, access = self._settings.gateway, services.governance.access
        hosts = allowed_hosts(gateway.host, gateway.allowed_hosts, authentication=access.is_on)
        self._metrics = HttpServer(page.answer, render_error, self._service_limits(access), admit=page.admit, hosts=hosts)
        self._events = events
        self._follow_events(services)
        self._model_controller = self._make_model_controller(services, audit)

    async def run(self, announce: Announce) -> None:
        """Serve until SIGTERM or SIGINT; call `announce` once, when everything is ready. Raises StartupError,
        in a group.
        """
        signals = StopSignals()
        signals.follow()
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload_tls)
        with ExitStack() as held:
            held.callback(self._sockets.close)
            url, timeout_s = self._settings.state.state_url, self._settings.triton.start_timeout_s
            if not await signals.finishes_first(wait_for_state_store(url, timeout_s=timeout_s)):
                return
            state = held.enter_context(StateDir(self._settings.process.state_dir))
            write_store_record(state.path, self._settings.state.state_url)
            self._sockets.bind_in_state_dir()  # only after the folder is locked: its socket file may be another's until then
            opened = open_request_services(self._settings, self._servers, admits_requests=self._workers is None, costs=self._tritons.costs)
            # Triton's group is the outer one, so that it ends while the stores are closed: either may take seconds.
            async with (
                asyncio.TaskGroup() as tritons,
                opened_audit_log(self._settings) as audit,
                opened_idempotency_records(self._settings) as records,
                opened as services,
                open_event_services(self._settings, services, audit) as events,
                asyncio.TaskGroup() as tasks,
            ):
                self._wire_ports(services, audit, records, events)
                triton = tritons.create_task(self._tritons.run(), name="tritons")
                background = [*self._start(tasks, services), tasks.create_task(services.run(), name="request-services")]
                make_admin = partial(self._make_admin, services, audit, records)
                opening = tasks.create_task(self._open_when_up(tasks, state, announce, make_admin), name="opening")
                await signals.wait()
                opening.cancel()  # a signal during the start ends it as well
                # The background tasks, Triton's among them, are needed until the last request in flight is
                # answered and charged.
                await self._stop_serving(signals)
                await services.costs.settle()
                triton.cancel()
                ending = self._end_workers() if self._data_plane is None else self._data_plane.close()
                await asyncio.gather(self._metrics.drain(0), self._drain_admin(), ending)
                for task in background:
                    task.cancel()

    def _start(self, tasks: asyncio.TaskGroup, services: RequestServices) -> list[asyncio.Task[None]]:
        started: list[asyncio.Task[None]] = []
        if self._workers is not None:
            charges = services.costs.charges
            charges.collect = self._workers.collect_charges
            started.append(tasks.create_task(self._workers.run(self._models, charges), name="workers"))
            if self._regions is not None:  # for the admin API and the metrics page; each worker has its own
                started.append(tasks.create_task(self._regions.run(), name="regions"))
        started.append(tasks.create_task(self._rollouts.run(), name="rollouts"))
        started.append(tasks.create_task(self._event_sources.run(), name="events"))
        started.append(tasks.create_task(self._events.run(), name="told-events"))
        if self._model_controller is not None:
            started.append(tasks.create_task(self._model_controller.run(), name="model-resources"))
        if self._data_plane is not None:
            started.append(tasks.create_task(self._data_plane.run(), name="data-plane"))
        started += [tasks.create_task(tls.watch(), name="tls-files") for tls in (self._tls, self._admin_tls) if tls is not None]
        return started

    async def _open_when_up(
        self, tasks: asyncio.TaskGroup, state: StateDir, announce: Announce, make_admin: Callable[[], HttpServer]
    ) -> None:
        self._admin = admin = await asyncio.to_thread(make_admin)
        await self._servers.wait_until_up()
        await self._tritons.open()
        tls = self._tls.context(HTTP) if self._tls else None
        await admin.listen(tasks, allow_restart(self._sockets.admin), self._admin_tls.context(HTTP) if self._admin_tls else tls)
        if self._sockets.admin_unix is not None:
            await admin.listen(tasks, self._sockets.admin_unix.listening)
        if self._workers is not None:
            await self._workers.open()
        if self._data_plane is not None:
            await self._data_plane.listen(tasks)
        await self._metrics.listen(tasks, allow_restart(self._sockets.metrics), tls)
        endpoints = self._sockets.endpoints()
        state.write_endpoints(endpoints)
        self._is_open = True
        announce(endpoints, self._tritons.failures)
        if self._builds is not None:  # after the announcement, since building takes minutes
            await self._builds.run()

    async def _stop_serving(self, signals: StopSignals) -> None:
        """Drain the data ports; the metrics page and the admin API stay up, so that it can be watched."""
        ports, gateway = self._workers or self._data_plane, self._settings.gateway
        assert ports is not None
        self._servers.is_stopping = True
        pause_s = gateway.drain_pause_s if self._is_open else 0.0
        await stop_serving(ports, signals, pause_s=pause_s, drain_s=gateway.longest_drain_s)

    async def _drain_admin(self) -> None:
        if self._admin is not None:
            await self._admin.drain(_ADMIN_DRAIN_S)

    async def _end_workers(self) -> None:
        assert self._workers is not None
        await self._workers.end()

    def _reload_tls(self) -> None:
        on_hangup(self._tls, self._admin_tls)
        if self._workers is not None:
            self._workers.reload_tls()

    def _make_data_plane(self, services: RequestServices) -> DataPlane:
        pin_worker(self._settings.process.gateway_cpus, 0, 1)
        held = self._sockets
        sockets = DataSockets(held.http, held.grpc, _listening_on(held.http_unix), _listening_on(held.grpc_unix))
        made = DataPlane(
            self._settings.gateway.model_copy(update={"max_connections": self._caps.data}),
            sockets,
            self._tls,
            governance=services.governance,
            models=self._models,
            servers=self._servers,
            cache=services.response_cache(self._fingerprints),
            fingerprints=self._fingerprints,
            tenants=services.events.tenants,
            dispatch=self._tritons.fleet.dispatch if self._tritons.fleet is not None else None,
            jobs=services.jobs,
            regions=self._regions,
        )
        made.deaths.tell = self._tritons.found_out
        return made

    def _make_admin(self, services: RequestServices, audit: AuditLog, records: IdempotencyRecords) -> HttpServer:
        # Imported and made here, in a thread beside the start of Triton: FastAPI and its paths take as long as half of that.
        with garbage_collector_paused():
            from control_plane.admin.api import make_admin_api
            from control_plane.admin.server import make_admin_server
            from control_plane.admin.services import AdminServices

        access, trail = services.governance.access, AuditTrail(audit)
        state = AuditedStore(MirroredStore(services.state, services.known), trail, Actor("gateway"))
        objects = Objects(state)
        admin_services = AdminServices(
            models=self._models,
            servers=self._servers,
            access=access,
            keys=Keys(state),
            webhook_secrets=WebhookSecrets(state),
            objects=objects,
            purges=Purges(objects, services.known, dependents=self._tritons.dependents_of),
            usage=UsageService(services.usage, lambda: services.known.prices.values()),
            trail=trail,
            known=services.known,
            degraded=partial(self._degraded, services),
            rollouts=self._rollouts.rollouts,
            fleet=self._tritons.fleet,
            regions=self._regions,
            sent_to_regions=lambda: self._counted.counts().regions,
            builds=self._builds,
            jobs=None if services.jobs is None else services.jobs.jobs,
            events=self._events.feed,
            subscriptions=self._events.subscriptions,
            records=records,
        )
        api = make_admin_api(admin_services, version=version("tidegate"), console=self._settings.admin.console)
        hosts = allowed_hosts(self._settings.admin.admin_host, self._settings.gateway.allowed_hosts, authentication=access.is_on)
        return make_admin_server(api, access, self._service_limits(access), hosts)

    def _degraded(self, services: RequestServices) -> list[str]:
        """Return what works less well than it should in any process, a sentence each, once."""
        of_workers = () if self._workers is None else self._workers.degraded()
        return list(dict.fromkeys([*services.degraded(), *self._events.degraded(), *of_workers]))

    def _follow_events(self, services: RequestServices) -> None:
        feed, fleet = self._events.feed, self._tritons.fleet
        self._events.follow(self._workers)
        if fleet is None and isinstance(self._models, ModelService):
            self._servers.follow(OnlyTritonEvents(feed))
            self._models.on_event = lambda what, model, reason: feed.publish(f"model.{what}", {"model": model, "reason": reason})
        self._event_sources = EventSources(
            feed,
            fleet=lambda: fleet.state.events.latest if fleet is not None else (),
            rollouts=lambda: services.known.rollouts.values(),
        )

    def _make_rollouts(self, services: RequestServices) -> RolloutServices:
        processes = self._workers or self._data_plane
        assert processes is not None
        give_up = self._workers.give_up if self._workers is not None else (lambda rollout_id: None)
        return RolloutServices(self._settings, services, self._tritons, observed=processes.take_observed, give_up=give_up)

    def _make_model_controller(self, services: RequestServices, audit: AuditLog) -> ModelController | None:
        if not self._settings.fleet.model_resources:
            return None
        from control_plane.app.gateway.model_resources import make_model_controller  # it imports FastAPI

        trail = AuditTrail(audit)
        objects = Objects(AuditedStore(services.state, trail, Actor("gateway")))
        return make_model_controller(self._settings.fleet, objects, self._tritons.fleet, trail, is_open=lambda: self._is_open)

    def _make_builds(self) -> ModelBuilds | None:
        triton = self._settings.triton
        if not triton.build_models or self._settings.is_attached:
            return None
        return ModelBuilds(ModelBuildProgram(triton.model_repository), self._models)

    def _make_workers(self) -> Workers:
        sockets = self._sockets
        # The parent holds the data ports but never listens on them: workers bind the same ports
        # (SO_REUSEPORT).
        for bound in (sockets.http, sockets.grpc):
            share_port(bound)
        launcher = WorkerProcessLauncher(sockets.settings_in_force(), http_socket=sockets.http_unix, grpc_socket=sockets.grpc_unix)
        return Workers(count=self._settings.process.workers, launcher=launcher)


def _listening_on(unix_socket: UnixSocket | None) -> socket.socket | None:
    return unix_socket.listening if unix_socket is not None else None
