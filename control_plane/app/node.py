"""The composition root of `tidegate node`: one Triton, its models, and the port for gateways.

The Triton is embedded or, with `--attach`, one that others start and stop. Start: bind the port -> Triton up -> models
described -> listen -> write `endpoints.json`. Stop, on SIGTERM or SIGINT: announce that Triton goes down -> pause -> end
Triton.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from control_plane.app.stopping import StopSignals
from control_plane.app.upstreams.model_sources import ModelSources
from control_plane.app.upstreams.triton_instances import TritonInstances
from control_plane.core.algorithms.silence import SilenceLimits
from control_plane.core.endpoints import ONLY, TritonEndpoints, authority
from control_plane.core.errors import StartupError
from control_plane.fleet.adapters.own_instance import OwnInstance
from control_plane.fleet.domain.counts import FleetCounts
from control_plane.host.boot_clock import boot_time_s
from control_plane.host.heartbeat import beat
from control_plane.host.network.exposure import is_loopback
from control_plane.host.network.listening import address_of, allow_restart, bind_tcp
from control_plane.host.state_dir import StateDir
from control_plane.metering.adapters.model_manifests import ModelManifests
from control_plane.metering.domain.compute_units import ModelCost
from control_plane.models.adapters.managed_repository import ManagedRepository
from control_plane.models.adapters.model_descriptions import ModelDescriptionFiles
from control_plane.models.adapters.profile import with_profile
from control_plane.models.domain.description import DescribedModel, ModelSpec
from control_plane.models.tiers.warm_tier_manager import WarmTierManager
from control_plane.node.adapters.credentials import read_secret, server_context
from control_plane.node.adapters.server import NodeServer
from control_plane.node.board import NodeBoard
from control_plane.node.domain.promises import Promises
from control_plane.node.service import NodeService
from control_plane.settings import NodeSettings, Settings
from control_plane.triton.config_name import config_name_in_force
from control_plane.triton.embedded.command import choose_ports
from control_plane.triton.servers import Servers

_log = logging.getLogger(__name__)

_SILENCE = SilenceLimits(interval_s=1.0)
"""Gateways listen to Triton themselves, and more often: here it only ends the node's own calls."""
_LEAVE_S = 0.5
"""Time for gateways to send no more requests before Triton is told to exit, which lets those it has finish."""

_OF_AN_OWN_TRITON = frozenset(("tritonserver", "triton_user", "triton_arg", "triton_env", "triton_cpus", "model_cpus"))
_PORTS_OF_AN_OWN_TRITON = frozenset(("node_triton_host", "node_triton_http_port", "node_triton_grpc_port", "node_triton_metrics_port"))

Announce = Callable[[Mapping[str, str]], None]


class Node:
    """The application of one `tidegate node`: the constructor wires it and binds the port, `run` serves until a
    signal."""

    def __init__(self, settings: Settings) -> None:
        """Raises StartupError."""
        _refuse_contradictions(settings)
        node, tls, secret = settings.node, server_context(settings.node), read_secret(settings.node)
        if not node.attach and not is_loopback(node.node_triton_host):
            _log.warning("Triton at %s asks nobody who they are: let only gateways reach its ports", node.node_triton_host)
        self._attached = node.attached
        triton = settings.triton.model_copy(update={"triton_transport": "tcp"})
        # Which configuration an attached Triton prefers says its own command line, not what this process finds here.
        self._settings = with_profile(replace(settings, triton=triton)) if self._attached is None else settings
        self._bound = bind_tcp(node.node_host, node.node_port, setting="--node-port")
        try:
            sources = ModelSources(self._settings, FleetCounts())
            self._tiers = sources.tiers
            self._wire(sources)
        except StartupError:
            self._bound.close()
            raise
        self._server = NodeServer(self._service, secret=secret, tls=tls)

    def _wire(self, sources: ModelSources) -> None:
        settings = self._settings
        units = TritonInstances(settings, sources=sources.folders, tiers=sources.tiers, is_fleet=True)
        units.silence = _SILENCE
        self._servers = Servers(None, (ONLY,))
        member = self._servers.members[ONLY]
        board = NodeBoard(Promises(boot_time_s()), now_s=boot_time_s)
        unit = self._unit = (
            units.embedded(member, board, None, self._stub_died, partial(_ports, settings.node))
            if self._attached is None
            else units.adopted(member, board, self._stub_died, self._attached)
        )
        config_name = config_name_in_force(settings.triton.model_config_name)
        parameters = settings.triton.model_parameter
        files = Files(
            ModelDescriptionFiles(sources.folders, config_name=config_name, parameters=parameters),
            ModelManifests(sources.folders, config_name=config_name, parameters=parameters),
            units.repository(settings.process.state_dir, is_ours=self._attached is None),
            sources.folders,
            sources.tiers,
            timeout_s=settings.triton.load_timeout_s,
        )
        instance = OwnInstance(unit.models, unit.triton.held_memory)
        self._service = NodeService(instance, member, board, files, suspect=unit.suspect, now_s=boot_time_s)
        self._servers.follow(self._service)
        units.oldest_s = lambda server, model: self._service.oldest_s(model)

    def _stub_died(self, server: str, model: str, how: str) -> None:
        self._service.stub_died(model, how)

    async def run(self, announce: Announce) -> None:
        """Serve until SIGTERM or SIGINT; call `announce` once, when gateways may come. Raises StartupError, in a
        group."""
        signals = StopSignals()
        signals.follow()
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, lambda: None)
        with self._bound, StateDir(self._settings.process.state_dir) as state:
            async with self._open_tiers(), asyncio.TaskGroup() as tasks:
                beating = tasks.create_task(beat(state.path), name="heartbeat")
                triton = tasks.create_task(self._unit.run(), name="triton")
                serving = tasks.create_task(self._serve(state, announce), name="serving")
                await signals.wait()
                self._service.down("its node is stopping", ONLY)
                await asyncio.sleep(_LEAVE_S)
                serving.cancel()
                triton.cancel()
                beating.cancel()

    async def _serve(self, state: StateDir, announce: Announce) -> None:
        await self._servers.wait_until_up()
        await self._service.open()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._service.run(), name="node")
            tasks.create_task(self._server.run(allow_restart(self._bound)), name="gateways")
            node = self._settings.node
            triton = node.attach or f"http://{authority(node.node_triton_host, node.node_triton_http_port)}"
            endpoints = {"node": address_of(self._bound), "triton": triton}
            state.write_endpoints(endpoints)
            announce(endpoints)

    @asynccontextmanager
    async def _open_tiers(self) -> AsyncIterator[None]:
        if self._tiers is None:
            yield
            return
        await self._tiers.open()
        try:
            async with asyncio.TaskGroup() as tasks:
                running = tasks.create_task(self._tiers.run(), name="model-tiers")
                yield
                running.cancel()
        finally:
            await self._tiers.close()


@dataclass(frozen=True, slots=True)
class Files:
    """Models' files of this machine: `node/ports.NodeFiles`."""

    descriptions: ModelDescriptionFiles
    manifests: ModelManifests
    repository: ManagedRepository
    folders: Sequence[Path]
    tiers: WarmTierManager | None
    timeout_s: float

    def read(self) -> tuple[Mapping[str, DescribedModel], Mapping[str, ModelCost]]:
        described = self.descriptions.read()
        # The configurations of cold models are read once they have been fetched.
        if (tiers := self.tiers) is not None:
            cold = set(tiers.names()) - described.keys()
            described |= {name: DescribedModel(ModelSpec(name), file_bytes=0, fetch_s=tiers.expected_fetch_s(name)) for name in cold}
        return described, self.manifests.read_now()

    def state(self) -> tuple[object, ...]:
        names = () if self.tiers is None else self.tiers.names()
        return *(_changed_ns(folder) for folder in self.folders), *names

    @asynccontextmanager
    async def held(self, name: str) -> AsyncIterator[None]:
        if self.tiers is None or name not in self.tiers.names():
            await asyncio.to_thread(self.repository.require_loadable, name)
            yield
            return
        await self.tiers.ensure_warm(name, deadline_s=asyncio.get_running_loop().time() + self.timeout_s)
        with self.tiers.pinned(name):
            await asyncio.to_thread(self.repository.require_loadable, name)
            yield


def _changed_ns(folder: Path) -> int:
    """Return when anything last came into a folder or left it; 0 if that cannot be seen."""
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return 0


def _ports(node: NodeSettings) -> TritonEndpoints:
    """Return the ports of Triton, with a secret of its own for each start."""
    return TritonEndpoints(
        host=node.node_triton_host,
        http_port=node.node_triton_http_port,
        grpc_port=node.node_triton_grpc_port,
        metrics_port=node.node_triton_metrics_port,
        control_secret=choose_ports().control_secret,
    )


def _refuse_contradictions(settings: Settings) -> None:
    if settings.is_attached:
        raise StartupError("`tidegate node` starts the Triton beside it; leave --triton-url and --servers-file to the gateways")
    if not settings.triton.lock_model_control:
        raise StartupError("TIDEGATE_LOCK_MODEL_CONTROL must be on for a node: it says with certainty what is loaded")
    if settings.triton.load is not None:
        raise StartupError("--load is for gateways: they decide what a node loads")
    theirs = (settings.triton.model_fields_set & _OF_AN_OWN_TRITON) | (settings.node.model_fields_set & _PORTS_OF_AN_OWN_TRITON)
    if settings.node.attach and theirs:
        raise StartupError(f"--attach: {', '.join(sorted(theirs))} would be of a Triton that the node starts; give that one its own flags")
