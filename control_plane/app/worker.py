"""One worker process of `tidegate serve --workers N`: the frontends, and a link to the parent, which has
everything else.

    python -m control_plane.app.worker_program LINK_DESCRIPTOR PARENT_PID

A worker never outlives its parent: the kernel kills it when the parent ends, and it ends when the link
closes.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from uuid import uuid4

import uvloop

from control_plane.app.data_plane.data_plane import DataPlane, DataSockets
from control_plane.app.data_plane.limits import connection_caps, share_of
from control_plane.app.data_plane.regions import make_regions
from control_plane.app.data_plane.request_services import RequestServices, open_request_services
from control_plane.app.stopping import DrainOrder
from control_plane.app.upstreams.clients import connect
from control_plane.core.endpoints import ONLY, Endpoints, TritonEndpoints
from control_plane.core.errors import StartupError
from control_plane.core.fingerprint import Fingerprint
from control_plane.host.cpu_affinity import pin_worker
from control_plane.host.memory.garbage import freeze_garbage_collector
from control_plane.host.network.tls import Tls, make_tls, on_hangup
from control_plane.models.fingerprints import Fingerprints
from control_plane.settings import Settings, from_plain
from control_plane.telemetry.adapters.logs import configure_logging
from control_plane.telemetry.request_counts import RequestCounts
from control_plane.triton.adapters.connected import UpstreamClient
from control_plane.triton.index_elsewhere import UpstreamWithIndex
from control_plane.triton.servers import Servers
from control_plane.workers.adapters.link import WorkerLink
from control_plane.workers.fleet_follower import FleetFollower
from control_plane.workers.messages import Message
from control_plane.workers.messages.between_workers import FindingShared, HangSuspected, LoadReported
from control_plane.workers.messages.from_workers import (
    Alive,
    ArmsObserved,
    Charges,
    CountsReported,
    Drained,
    FingerprintsAcknowledged,
    FollowTenants,
    Listening,
    RequestsEnded,
    SilenceSuspected,
    StartFailed,
    TenantsTold,
)
from control_plane.workers.messages.to_workers import (
    AnnounceDrain,
    Changed,
    CollectCharges,
    CollectFor,
    Configure,
    Drain,
    FingerprintsChanged,
    IndexRead,
    Listen,
    ModelsChanged,
    ReloadTls,
    RelyUntil,
    ReplicasChanged,
    RolloutGivenUp,
    ServersChanged,
    TenantEvents,
    TokensDrawn,
    TurnGiven,
    UnderRepair,
    UpstreamDown,
    UpstreamSilence,
    UpstreamUp,
    WatchRequests,
    WorkedOnElsewhere,
)
from control_plane.workers.parents_index import ParentsIndexes
from control_plane.workers.remote_models import RemoteModels
from control_plane.workers.suspect_turns import RemoteTurns
from control_plane.workers.token_buckets import RemoteTokenBuckets

_log = logging.getLogger(__name__)

_COUNT_EVERY_S = 1.0
_CHARGE_EVERY_S = 0.25
_CLOSE_TIMEOUT_S = 1.0
_PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that the kernel sends to this process when its parent ends."""


class Worker:
    """A worker process: a data plane that follows its parent's messages, and reports counts and charges to
    it.
    """

    def __init__(
        self,
        begin: Configure,
        settings: Settings,
        link: WorkerLink,
        servers: Servers,
        services: RequestServices,
        buckets: RemoteTokenBuckets,
    ) -> None:
        """Wire everything and bind the ports. Raises StartupError."""
        self._link = link
        self._services = services
        self._buckets = buckets
        gateway = share_of(settings.gateway, settings.process.workers)
        caps = connection_caps(gateway, settings.admin, servers=len(servers.members))
        self._gateway = gateway.model_copy(update={"max_connections": caps.data})
        self._drain = DrainOrder()
        self._servers = servers
        self._upstreams: dict[str, UpstreamClient] = {}
        self._fleet = _fleet_of(settings, servers, link)
        if not settings.is_attached or self._fleet is not None:
            servers.suspect = lambda server, model, since_s: link.send(SilenceSuspected(server, model, since_s))
            if self._fleet is not None:
                self._fleet.router.suspect = servers.suspect
        self._fingerprints = Fingerprints()
        self._models = RemoteModels(link.send)
        self._indexes = ParentsIndexes(link.send)
        self._tls: Tls | None = make_tls(settings.tls)
        self._data_plane = DataPlane(
            self._gateway,
            _sockets(begin),
            self._tls,
            governance=services.governance,
            models=self._models,
            servers=servers,
            cache=services.response_cache(self._fingerprints),
            fingerprints=self._fingerprints,
            tenants=services.events.tenants,
            dispatch=None if self._fleet is None else self._fleet.dispatch,
            jobs=services.jobs,
            regions=make_regions(settings),
        )
        services.events.tenants.changed = lambda tenants: link.send(FollowTenants(sorted(tenants)))
        self._data_plane.deaths.tell = lambda finding: link.send(FindingShared.of(finding))
        self._data_plane.deaths.turns = self._turns = RemoteTurns(link.send)

    async def run(self) -> None:
        """Serve until the parent sends `Drain`, SIGTERM arrives, or the link closes."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._drain.give, self._gateway.longest_drain_s)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, on_hangup, self._tls)
        async with asyncio.TaskGroup() as tasks:
            background = [
                tasks.create_task(self._follow(tasks), name="link"),
                tasks.create_task(self._report_counts(), name="counts"),
                tasks.create_task(self._report_charges(), name="charges"),
                tasks.create_task(self._services.run(), name="request-services"),
                tasks.create_task(self._data_plane.run(), name="data-plane"),
            ]
            if self._tls is not None:
                background.append(tasks.create_task(self._tls.watch(), name="tls-files"))
            if self._fleet is not None:
                background.append(tasks.create_task(self._fleet.run(), name="fleet"))
            await self._drain.carry_out(self._data_plane)
            self._send_charges()
            self._link.send(Drained())
            for task in background:
                task.cancel()
        # Before the stores are closed, which may take long: an idle connection holds up Triton's exit.
        disconnecting = (self._disconnect(server, "the gateway is stopping") for server in list(self._upstreams))
        await asyncio.gather(*disconnecting, self._data_plane.close())

    async def _follow(self, tasks: asyncio.TaskGroup) -> None:
        """Carry out the parent's messages, also during the drain; if the link closes, end without a drain."""
        while (message := await self._link.receive()) is not None:
            await self._carry_out(message, tasks)
        self._drain.give(0.0)

    async def _carry_out(self, message: Message, tasks: asyncio.TaskGroup) -> None:
        match message:
            case UpstreamUp(endpoints, server):
                await self._connect(server, endpoints)
            case UpstreamDown(reason, server):
                await self._upstream_down(server, reason)
            case UnderRepair(ready_s):
                self._servers.under_repair.show(ready_s)
            case UpstreamSilence(is_silent, server):
                self._upstream_silent(server, is_silent=is_silent)
            case WorkedOnElsewhere() | HangSuspected() if self._fleet is not None:
                self._fleet.apply(message)
            case ServersChanged() | ModelsChanged() | ReplicasChanged() | LoadReported() if self._fleet is not None:
                self._fleet.apply(message)
                await self._disconnect_removed()
            case FindingShared():
                self._data_plane.deaths.learn(message.finding)
            case TurnGiven():
                self._turns.given(message)
            case Listen():
                await self._data_plane.listen(tasks)
                self._link.send(Listening())
            case FingerprintsChanged(number, changes):
                self._fingerprints.change({name: Fingerprint(*known) if known else None for name, known in changes.items()})
                self._link.send(FingerprintsAcknowledged(number))
            case IndexRead():
                self._indexes.answered(message)
            case RelyUntil(until_s):
                self._fingerprints.rely_until(inf if until_s is None else until_s)
            case RolloutGivenUp(rollout):
                self._services.known.give_up(rollout)
            case WatchRequests(is_watched):
                self._services.events.watch(is_watched)
            case CollectFor(tenants):
                self._services.events.collect_for(frozenset(tenants))
            case TenantEvents(tenant, feed, first, events, begins, more):
                encoded = [event.encode() for event in events]
                self._services.events.tenants.take(tenant, feed, first, encoded, begins=begins, more=more)
            case TokensDrawn():
                self._buckets.answered(message)
            case Changed():
                self._models.answered(message)
            case CollectCharges(number):
                self._link.send(Charges(self._services.costs.charges.take(), number))
            case ReloadTls() if self._tls is not None:
                self._tls.reload()
            case AnnounceDrain():
                self._data_plane.announce_drain()
            case Drain(timeout_s):
                self._drain.give(timeout_s)

    async def _upstream_down(self, server: str, reason: str) -> None:
        # Triton has restarted, maybe with other contents. In a fleet other servers may still have the model: there the
        # parent sends which fingerprints no longer hold.
        if self._fleet is None:
            self._fingerprints.forget_all()
        await self._disconnect(server, reason)

    def _upstream_silent(self, server: str, *, is_silent: bool) -> None:
        member = self._servers.members[server]
        if is_silent:
            member.fell_silent()
        else:
            member.heard()

    async def _disconnect_removed(self) -> None:
        for server in self._upstreams.keys() - self._servers.members.keys():
            await self._disconnect(server, "it has left the fleet")

    async def _connect(self, server: str, endpoints: Endpoints) -> None:
        await self._disconnect(server, "Triton is being restarted")
        try:
            upstream = self._upstreams[server] = connect(self._gateway, endpoints)
        except StartupError as exc:  # a certificate's file is being renewed: the other processes go on
            _log.error("this worker cannot use server %s: %s", server, exc)
            self._servers.members[server].down(f"its credentials cannot be read: {exc}")
            return
        has_node = isinstance(endpoints, TritonEndpoints) and endpoints.node
        index = partial(self._indexes.read, server)
        self._servers.members[server].up(UpstreamWithIndex(upstream, index) if has_node else upstream)

    async def _disconnect(self, server: str, reason: str) -> None:
        if server in self._servers.members:  # it may have left the fleet
            self._servers.members[server].down(reason)
        upstream = self._upstreams.pop(server, None)
        if upstream is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(upstream.close(), _CLOSE_TIMEOUT_S)  # not asyncio.timeout: see `supervisor._close`

    async def _report_counts(self) -> None:
        while True:
            await asyncio.sleep(_COUNT_EVERY_S)
            self._link.send(CountsReported(self._counts(), tuple(self._services.degraded())))

    async def _report_charges(self) -> None:
        """Report charges, and that this process runs (`workers/parent/workers` listens for that)."""
        while True:
            await asyncio.sleep(_CHARGE_EVERY_S)
            self._send_charges()
            if seen := self._data_plane.take_observed():
                self._link.send(ArmsObserved(list(seen)))
            while ended := self._services.events.tap.take():
                self._link.send(RequestsEnded([event.decode() for event in ended]))
                await asyncio.sleep(0)
            while tapped := self._services.events.tenant_tap.take():
                self._link.send(TenantsTold([*tapped]))
                await asyncio.sleep(0)
            plane = self._data_plane
            self._link.send(Alive(tuple(plane.awaited()), tuple(plane.given_up()), tuple(plane.streaming())))

    def _counts(self) -> RequestCounts:
        return replace(self._data_plane.counts(), events=self._services.events.counts())

    def _send_charges(self) -> None:
        charges = self._services.costs.charges.take()
        if charges:
            self._link.send(Charges(charges))

    async def end(self) -> None:
        """Send the last counts; the parent waits for nothing after them."""
        self._link.send(CountsReported(self._counts()))
        await self._link.flush()
        self._link.close()


async def _serve(end: socket.socket) -> int:
    link = await WorkerLink.over(end)
    begin = await link.receive()
    if not isinstance(begin, Configure):  # the link closed: the parent has ended in the meantime
        return 1
    settings = from_plain(begin.settings)
    process = settings.process
    configure_logging(process.log_format)
    pin_worker(process.gateway_cpus, begin.worker, process.workers)
    servers = Servers(None, () if settings.is_fleet else (ONLY,))  # the parent sends a fleet's members
    try:
        buckets = RemoteTokenBuckets(link.send)
        async with open_request_services(settings, servers, buckets=buckets) as services:
            worker = Worker(begin, settings, link, servers, services, buckets)
            await worker.run()
    except StartupError as exc:
        link.send(StartFailed(str(exc)))
        await link.flush()
        return 1
    await worker.end()
    return 0


def _fleet_of(settings: Settings, servers: Servers, link: WorkerLink) -> FleetFollower | None:
    if not settings.is_fleet:
        return None
    return FleetFollower(servers, send=link.send, wait_s=settings.fleet.load_wait_s, process=uuid4().hex, hedging=settings.fleet.hedging)


def _sockets(begin: Configure) -> DataSockets:
    http_unix, grpc_unix = (None if each is None else _inherited(each) for each in (begin.http_socket_fd, begin.grpc_socket_fd))
    return DataSockets(http=_inherited(begin.http_fd), grpc=_inherited(begin.grpc_fd), http_unix=http_unix, grpc_unix=grpc_unix)


def _inherited(descriptor: int) -> socket.socket:
    inherited = socket.socket(fileno=descriptor)
    inherited.setblocking(False)
    return inherited


def _die_with(parent: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")
    if os.getppid() != parent:  # the parent ended before the prctl, which then never fires
        sys.exit(1)


def main() -> None:
    """Run the worker that `workers/adapters/process` starts."""
    descriptor, parent = map(int, sys.argv[1:])
    _die_with(parent)
    end = socket.socket(fileno=descriptor)
    end.setblocking(False)
    freeze_garbage_collector()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(_serve(end)))
