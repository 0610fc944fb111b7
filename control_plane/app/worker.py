"""One worker process of `tidegate serve --workers N`: both doors, and a link to the parent, which has all the rest.

    python -m control_plane.app.worker LINK_DESCRIPTOR PARENT_PID

It lives no longer than its parent: the kernel kills it when the parent ends, and the end of the link ends it too.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import sys
from contextlib import suppress
from uuid import uuid4

import uvloop

from control_plane.app.data_plane import DataPlane, DataSockets, connect, connection_caps, share_of
from control_plane.app.request_governance import Governing, open_governing
from control_plane.core.endpoints import ONLY, Endpoints
from control_plane.core.errors import StartupError
from control_plane.core.fingerprint import Fingerprint
from control_plane.host.cpu_affinity import pin_worker
from control_plane.host.garbage import keep_what_is_there
from control_plane.host.listening import bind_shared_tcp
from control_plane.host.tls import Tls, make_tls
from control_plane.models.fingerprints import Fingerprints
from control_plane.settings import GatewaySettings, Settings, from_plain
from control_plane.telemetry.adapters.logs import configure_logging
from control_plane.triton.adapters.connected import Triton
from control_plane.triton.servers import Servers
from control_plane.workers.adapters.link import WorkerLink
from control_plane.workers.messages import (
    Begin,
    CannotBegin,
    Changed,
    Charges,
    CopiesSeen,
    Counted,
    Drain,
    FingerprintsChanged,
    FingerprintsTaken,
    Listen,
    Listening,
    ModelsSeen,
    ReloadTls,
    Reported,
    ServersSeen,
    TellCharges,
    TokensDrawn,
    UpstreamDown,
    UpstreamUp,
)
from control_plane.workers.remote_models import RemoteModels
from control_plane.workers.token_buckets import ParentsBuckets
from control_plane.workers.worker_fleet import WorkerFleet

_COUNT_EVERY_S = 1.0
_CHARGE_EVERY_S = 0.25
_CLOSE_TIMEOUT_S = 1.0
_PR_SET_PDEATHSIG = 1


class Worker:
    """The process from its first message to its last."""

    def __init__(
        self, begin: Begin, settings: Settings, link: WorkerLink, servers: Servers, governing: Governing, buckets: ParentsBuckets
    ) -> None:
        """Wire everything and bind the ports. Raises StartupError."""
        self._link = link
        self._governing = governing
        self._buckets = buckets
        gateway = share_of(settings.gateway, settings.process.workers)
        caps = connection_caps(gateway, settings.admin, servers=len(servers.members))
        self._gateway = gateway.model_copy(update={"max_connections": caps.data})
        self._must_end = asyncio.Event()
        self._drain_timeout_s = 0.0
        self._servers = servers
        self._upstreams: dict[str, Triton] = {}
        self._fleet = _fleet_of(settings, servers, link)
        self._fingerprints = Fingerprints()
        self._models = RemoteModels(link.send)
        self._tls: Tls | None = make_tls(settings.tls)
        self._data_plane = DataPlane(
            self._gateway,
            _sockets(begin, settings.gateway),
            self._tls,
            governance=governing.governance,
            models=self._models,
            servers=servers,
            cache=governing.response_cache(self._fingerprints),
            fingerprints=self._fingerprints,
            dispatch=None if self._fleet is None else self._fleet.dispatch,
        )

    async def run(self) -> None:
        """Serve until the parent says `Drain`, SIGTERM comes, or the link ends."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._end_within, self._gateway.drain_timeout_s)
        async with asyncio.TaskGroup() as tasks:
            background = [tasks.create_task(self._follow(tasks), name="link"), tasks.create_task(self._tell_counts(), name="counts")]
            background.append(tasks.create_task(self._tell_charges(), name="charges"))
            background.append(tasks.create_task(self._governing.run(), name="governing"))
            background.append(tasks.create_task(self._data_plane.run(), name="known-models"))
            if self._tls is not None:
                background.append(tasks.create_task(self._tls.watch(), name="tls-files"))
            if self._fleet is not None:
                background.append(tasks.create_task(self._fleet.run(), name="fleet"))
            await self._must_end.wait()
            await self._data_plane.drain(self._drain_timeout_s)
            for task in background:
                task.cancel()

    def _end_within(self, timeout_s: float) -> None:
        self._drain_timeout_s = timeout_s
        self._must_end.set()

    async def _follow(self, tasks: asyncio.TaskGroup) -> None:
        """Do what the parent says, also while requests in flight finish; without a parent there is nothing to wait for."""
        while (message := await self._link.receive()) is not None:
            match message:
                case UpstreamUp(endpoints, server):
                    await self._connect(server, endpoints)
                case UpstreamDown(reason, server):
                    if self._fleet is None:  # else the parent tells what is known no longer
                        self._fingerprints.forget_all()
                    await self._disconnect(server, reason)
                case ServersSeen() | ModelsSeen() | CopiesSeen() | Reported() if self._fleet is not None:
                    self._fleet.take(message)
                    for server in self._upstreams.keys() - self._servers.members.keys():
                        await self._disconnect(server, "it has left the fleet")
                case Listen():
                    await self._data_plane.listen(tasks)
                    self._link.send(Listening())
                case FingerprintsChanged(number, changes):
                    self._fingerprints.change({name: Fingerprint(*known) if known else None for name, known in changes.items()})
                    self._link.send(FingerprintsTaken(number))
                case TokensDrawn():
                    self._buckets.answered(message)
                case Changed():
                    self._models.answered(message)
                case TellCharges(number):
                    self._link.send(Charges(self._governing.costs.charges.take(), number))
                case ReloadTls() if self._tls is not None:
                    self._tls.reload()
                case Drain(timeout_s):
                    self._end_within(timeout_s)
        self._end_within(0.0)

    async def _connect(self, server: str, endpoints: Endpoints) -> None:
        await self._disconnect(server, "Triton is being restarted")
        upstream = self._upstreams[server] = connect(self._gateway, endpoints)
        self._servers.members[server].up(upstream)

    async def _disconnect(self, server: str, reason: str) -> None:
        if server in self._servers.members:  # else it has left
            self._servers.members[server].down(reason)
        upstream = self._upstreams.pop(server, None)
        if upstream is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await upstream.close()

    async def _tell_counts(self) -> None:
        while True:
            await asyncio.sleep(_COUNT_EVERY_S)
            self._link.send(Counted(self._data_plane.counts()))

    async def _tell_charges(self) -> None:
        while True:
            await asyncio.sleep(_CHARGE_EVERY_S)
            self._hand_over_charges()

    def _hand_over_charges(self) -> None:
        charges = self._governing.costs.charges.take()
        if charges:
            self._link.send(Charges(charges))

    async def end(self) -> None:
        """Tell the last counts; the parent waits for nothing more from then on."""
        await asyncio.gather(*(self._disconnect(server, "the gateway is stopping") for server in list(self._upstreams)))
        self._hand_over_charges()
        self._link.send(Counted(self._data_plane.counts()))
        await self._link.flush()
        self._link.close()


async def _serve(end: socket.socket) -> int:
    link = await WorkerLink.over(end)
    begin = await link.receive()
    if not isinstance(begin, Begin):  # the parent has ended in the meantime
        return 1
    settings = from_plain(begin.settings)
    process = settings.process
    configure_logging(process.log_format)
    pin_worker(process.gateway_cpus, begin.worker, process.workers)
    servers = Servers(None, () if settings.is_fleet else (ONLY,))
    try:
        buckets = ParentsBuckets(link.send)
        async with open_governing(settings, servers, buckets=buckets) as governing:
            worker = Worker(begin, settings, link, servers, governing, buckets)
            await worker.run()
    except StartupError as exc:
        link.send(CannotBegin(str(exc)))
        await link.flush()
        return 1
    await worker.end()
    return 0


def _fleet_of(settings: Settings, servers: Servers, link: WorkerLink) -> WorkerFleet | None:
    if not settings.is_fleet:
        return None
    return WorkerFleet(servers, send=link.send, wait_s=settings.fleet.load_wait_s, process=uuid4().hex)


def _sockets(begin: Begin, gateway: GatewaySettings) -> DataSockets:
    return DataSockets(
        http=bind_shared_tcp(gateway.host, gateway.http_port, setting="--http-port"),
        grpc=bind_shared_tcp(gateway.host, gateway.grpc_port, setting="--grpc-port"),
        http_unix=_inherited(begin.http_socket_fd),
        grpc_unix=_inherited(begin.grpc_socket_fd),
    )


def _inherited(descriptor: int | None) -> socket.socket | None:
    if descriptor is None:
        return None
    inherited = socket.socket(fileno=descriptor)
    inherited.setblocking(False)
    return inherited


def _die_with(parent: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")
    if os.getppid() != parent:  # it ended before this could be asked for
        sys.exit(1)


def main() -> None:
    """Run the worker that `workers/adapters/process` starts."""
    descriptor, parent = map(int, sys.argv[1:])
    _die_with(parent)
    end = socket.socket(fileno=descriptor)
    end.setblocking(False)
    keep_what_is_there()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(_serve(end)))


if __name__ == "__main__":
    main()
