"""Builds everything and runs it: the only place that knows which adapter stands behind which port.

Start: ports bound -> Triton up -> models loaded -> listening -> `endpoints.json`. Stop, on SIGTERM or SIGINT: not
ready -> drain both doors -> pools closed -> Triton ended, in reverse.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping
from importlib.metadata import version

from control_plane.adapters.admin_server import AdminServer
from control_plane.adapters.embedded_triton.process import EmbeddedTritonLauncher
from control_plane.adapters.grpc_server import GrpcServer
from control_plane.adapters.listening import allow_restart, bind_tcp, url_of
from control_plane.adapters.managed_repository import ManagedRepository
from control_plane.adapters.model_config import config_name_in_force
from control_plane.adapters.prometheus import PrometheusRecorder
from control_plane.adapters.state_dir import StateDir
from control_plane.adapters.triton import Triton
from control_plane.api.admin import make_admin_api
from control_plane.api.http_connection import HttpLimits
from control_plane.api.http_server import HttpServer
from control_plane.api.metrics import MetricsPage
from control_plane.api.v2_grpc import V2Grpc
from control_plane.api.v2_http import V2Http, render_error
from control_plane.domain.endpoints import TritonEndpoints
from control_plane.domain.errors import StartupError
from control_plane.policy.exposure import refusal
from control_plane.ports import ModelRepository, Upstream
from control_plane.services.attachment import Attachment
from control_plane.services.inference import InferenceService
from control_plane.services.models import LoadFailure, ModelService
from control_plane.services.servers import Servers
from control_plane.services.supervisor import Supervisor
from control_plane.settings import Settings, parse_triton_url

DEFAULT_MODELS = ("text_embedding",)
"""What the project serves when nothing is asked for."""

Announce = Callable[[Mapping[str, str], list[LoadFailure]], None]


class App:
    """One `tidegate serve`: every part, wired; `run` is its whole life."""

    def __init__(self, settings: Settings) -> None:
        """Wire everything and bind every port. Raises StartupError."""
        _refuse_exposure(settings)
        self._settings = settings
        self._servers = Servers()
        self._failures: list[LoadFailure] = []
        repository = _managed_repository(settings)
        self._models = ModelService(
            servers=self._servers,
            repository=repository,
            load=_models_to_load(settings, repository),
            load_timeout_s=settings.triton.load_timeout_s,
        )
        self._triton = self._attachment() if repository is None else self._supervisor()
        self._inference: InferenceService
        self._bind_data_doors()
        self._bind_admin_door()

    async def run(self, announce: Announce) -> None:
        """Serve until a signal; `announce` is told once, when everything is ready. Raises StartupError, in a group."""
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        with StateDir(self._settings.process.state_dir) as state:
            async with asyncio.TaskGroup() as tasks:
                triton = tasks.create_task(self._triton.run(), name="triton")
                opening = tasks.create_task(self._open_when_up(tasks, state, announce), name="opening")
                await stop.wait()
                opening.cancel()
                await self._drain()
                triton.cancel()

    async def _open_when_up(self, tasks: asyncio.TaskGroup, state: StateDir, announce: Announce) -> None:
        await self._servers.wait_until_up()
        tasks.create_task(self._admin.run_until_told(), name="admin-api")
        await self._http.listen(tasks, allow_restart(self._http_socket))
        await self._metrics.listen(tasks, allow_restart(self._metrics_socket))
        await self._grpc.start()
        endpoints = {
            "http": url_of(self._http_socket, "http"),
            "grpc": self._grpc.address,
            "metrics": url_of(self._metrics_socket, "http") + "/metrics",
            "admin": url_of(self._admin_socket, "http"),
        }
        state.write_endpoints(endpoints)
        announce(endpoints, self._failures)

    async def _drain(self) -> None:
        timeout_s = self._settings.gateway.drain_timeout_s
        await asyncio.gather(self._http.drain(timeout_s), self._grpc.drain(timeout_s))
        self._admin.should_exit = True
        await self._metrics.drain(0)

    async def _restore(self, upstream: Upstream) -> None:
        self._failures = await self._models.restore(upstream)

    def _connect(self, endpoints: TritonEndpoints) -> Upstream:
        return Triton(endpoints, max_connections=self._settings.gateway.max_upstream_connections)

    def _supervisor(self) -> Supervisor:
        return Supervisor(
            launcher=EmbeddedTritonLauncher(self._settings.triton, self._settings.process.state_dir),
            connect=self._connect,
            servers=self._servers,
            restore=self._restore,
            start_timeout_s=self._settings.triton.start_timeout_s,
        )

    def _attachment(self) -> Attachment:
        return Attachment(
            upstream=self._connect(parse_triton_url(self._settings.triton.triton_url)),
            servers=self._servers,
            restore=self._restore,
            start_timeout_s=self._settings.triton.start_timeout_s,
        )

    def _bind_data_doors(self) -> None:
        gateway = self._settings.gateway
        recorder = PrometheusRecorder(
            version=version("tidegate"), in_flight=lambda: self._inference.in_flight, triton_is_up=lambda: self._servers.is_up
        )
        self._inference = InferenceService(servers=self._servers, recorder=recorder, default_timeout_s=gateway.request_timeout_s)
        limits = HttpLimits(gateway.max_body_bytes, gateway.max_header_bytes, gateway.max_connections)
        v2_http = V2Http(
            inference=self._inference,
            servers=self._servers,
            max_body_bytes=gateway.max_body_bytes,
            read_timeout_s=gateway.request_timeout_s,
        )
        v2_grpc = V2Grpc(inference=self._inference, servers=self._servers, read_timeout_s=gateway.request_timeout_s)
        page = MetricsPage(render_own=recorder.render, servers=self._servers)
        self._http = HttpServer(v2_http.answer, render_error, limits)
        self._http_socket = bind_tcp(gateway.host, gateway.http_port, setting="--http-port")
        self._metrics = HttpServer(page.answer, render_error, limits)
        self._metrics_socket = bind_tcp(gateway.host, gateway.metrics_port, setting="--metrics-port")
        self._grpc = GrpcServer(v2_grpc, host=gateway.host, port=gateway.grpc_port, max_message_bytes=gateway.max_body_bytes)

    def _bind_admin_door(self) -> None:
        admin = self._settings.admin
        self._admin_socket = bind_tcp(admin.admin_host, admin.admin_port, setting="--admin-port")
        self._admin = AdminServer(
            make_admin_api(models=self._models, servers=self._servers, version=version("tidegate")), self._admin_socket
        )


def _refuse_exposure(settings: Settings) -> None:
    for host, setting in ((settings.gateway.host, "--host"), (settings.admin.admin_host, "--admin-host")):
        reason = refusal(host, setting=setting, authentication_is_configured=False)
        if reason is not None:
            raise StartupError(reason)


def _managed_repository(settings: Settings) -> ManagedRepository | None:
    if settings.triton.triton_url:
        return None
    config_name = config_name_in_force(settings.triton.model_config_name)
    return ManagedRepository(settings.triton.model_repository, settings.process.state_dir, config_name=config_name)


def _models_to_load(settings: Settings, repository: ModelRepository | None) -> list[str]:
    if settings.triton.load is not None:
        return settings.triton.load
    if repository is None:
        return []
    return [name for name in DEFAULT_MODELS if name in repository.names()]
