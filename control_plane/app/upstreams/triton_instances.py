"""Wires one Triton of a gateway: its supervisor (embedded) or watch (attached), its repository and its models."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Protocol

from control_plane.app.upstreams.clients import connect
from control_plane.core.algorithms.backoff import RestartLimits
from control_plane.core.algorithms.silence import SilenceLimits
from control_plane.core.endpoints import NO_CREDENTIALS, ONLY, Endpoints, TritonEndpoints, UpstreamCredentials
from control_plane.host.cpu_affinity import allowed_cpus
from control_plane.host.memory.server_memory import ServerMemory
from control_plane.host.network.tls import HTTP
from control_plane.models.adapters.managed_repository import ManagedRepository
from control_plane.models.adapters.model_files import ModelFiles
from control_plane.models.loaded_contents import LoadedContents
from control_plane.models.model_service import LoadFailure, ModelService
from control_plane.models.ports import FingerprintBoard, LoadWatch, ModelRepository, ModelStubs
from control_plane.models.revivals import ModelRevivals
from control_plane.models.tiers.warm_tier_manager import WarmTierManager
from control_plane.node.locked_board import LockedBoard
from control_plane.settings import Settings, TritonSettings
from control_plane.triton.adapters.credentials import make_context, read_headers
from control_plane.triton.adopted.adoption import Adoption
from control_plane.triton.adopted.launcher import AdoptedTritonLauncher
from control_plane.triton.attachment import AttachedHealthCheck
from control_plane.triton.config_name import config_name_in_force
from control_plane.triton.embedded.backend_directory import backend_names
from control_plane.triton.embedded.command import choose_ports
from control_plane.triton.embedded.installation import own_installation
from control_plane.triton.embedded.process import EmbeddedTritonLauncher
from control_plane.triton.ports import Upstream
from control_plane.triton.server_state import ServerState
from control_plane.triton.supervisor import Supervisor
from control_plane.triton.under_repair import ModelsUnderRepair

DEFAULT_MODELS = ("text_embedding",)
"""Models of the project that are loaded at the start when `--load` is not given."""

_WHEN_ADOPTED = RestartLimits(max_delay_s=2.0)
"""Others restart an adopted Triton, with delays of their own: to look for it costs little."""

ServerStubDied = Callable[[str, str, str], None]
"""Called with a server, a model of which a stub has died there, and how it ended."""


@dataclass(frozen=True, slots=True)
class TritonInstance:
    """One Triton instance with the services that belong to it."""

    name: str
    models: ModelService
    contents: LoadedContents | None
    triton: Supervisor | AttachedHealthCheck
    watches: tuple[Callable[[], Coroutine[None, None, None]], ...] = ()
    """What runs beside an embedded Triton."""
    suspect: Callable[[str, float], None] = lambda model, since_s: None
    """Told of a model of the embedded Triton that seems to hang, and since when."""
    explain_death: Callable[[str], None] = lambda model: None
    """Told of a model of which a stub died here under a request that is refused now."""

    async def run(self) -> None:
        """Run the embedded Triton, or watch the attached one, until cancelled. Raises StartupError, in a
        group.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.models.run(), name=f"models-{self.name}")
            tasks.create_task(self.triton.run(), name=self.name)
            for watch in self.watches:
                tasks.create_task(watch(), name=f"watch-{self.name}")


class TritonInstances:
    """Factory of `TritonInstance`s, embedded or attached."""

    def __init__(self, settings: Settings, *, sources: list[Path], tiers: WarmTierManager | None, is_fleet: bool) -> None:
        """`sources` are the folders of models on this machine. With `is_fleet` units load nothing by
        themselves at the start. Raises StartupError: the credentials for attached Tritons cannot be used.
        """
        self._settings = settings
        self._sources = sources
        self._tiers = tiers
        self._is_fleet = is_fleet
        self._memory = ServerMemory()
        self._credentials = _credentials(settings.triton) if settings.is_attached else NO_CREDENTIALS
        self.oldest_s: Callable[[str, str], float] = lambda server, model: inf
        """When workers have sent the first request to a server's model that they wait for."""
        self.silence: SilenceLimits | None = None
        """How often an own Triton is asked whether it is live; None for the default."""
        self.failures: dict[str, list[LoadFailure]] = {}
        """Unit's name -> models that failed to load at its latest start."""

    def embedded(
        self,
        member: ServerState,
        board: FingerprintBoard,
        alone: ModelsUnderRepair | None,
        died: ServerStubDied,
        choose: Callable[[], TritonEndpoints] = choose_ports,
    ) -> TritonInstance:
        """Make the unit of a Triton that this process starts; `alone` is given where it is the only one, and
        `died` is told of stubs that die. `choose` chooses ports for the transport `tcp`. Raises StartupError."""
        settings, triton = self._settings, self._settings.triton
        state_dir = self._state_dir(member.name)
        repository = self.repository(state_dir)
        # All CPUs must be named if the data plane is pinned: Triton would inherit the pinned process's CPUs.
        cpus = triton.triton_cpus or (allowed_cpus() if settings.process.gateway_cpus else ())
        launcher = EmbeddedTritonLauncher(
            triton,
            state_dir,
            cpus=cpus,
            header_forward_pattern=settings.gateway.header_forward_pattern,
            choose=choose,
            within=self._above(state_dir),
            memory=self._memory,
        )
        models = self._models(member, repository, self._loaded_contents(repository, board), launcher, launcher)
        return self._supervised(member, models, launcher, Restore(member.name, models, self.failures), alone, died)

    def adopted(self, member: ServerState, board: FingerprintBoard, died: ServerStubDied, endpoints: Endpoints) -> TritonInstance:
        """Make the unit of a Triton that others start and stop, and into which only this process loads, from a folder
        that both see. `died` is told of stubs that die. Raises StartupError."""
        settings = self._settings
        repository = self.repository(self._state_dir(member.name), is_ours=False)
        locked = LockedBoard(board)
        launcher = AdoptedTritonLauncher(endpoints, repository.root, start_timeout_s=settings.triton.start_timeout_s, memory=self._memory)
        models = self._models(member, repository, self._loaded_contents(repository, locked), launcher, launcher)
        restore = Restore(member.name, models, self.failures)
        adoption = Adoption(endpoints, repository.root, locked.lock, restore, settings.triton.load_timeout_s)
        return self._supervised(member, models, launcher, adoption, None, died, _WHEN_ADOPTED)

    def _supervised(
        self,
        member: ServerState,
        models: ModelService,
        launcher: EmbeddedTritonLauncher | AdoptedTritonLauncher,
        restore: Callable[[Upstream], Awaitable[None]],
        alone: ModelsUnderRepair | None,
        died: ServerStubDied,
        limits: RestartLimits | None = None,
    ) -> TritonInstance:
        supervisor = Supervisor(
            launcher=launcher,
            connect=self._connect,
            servers=member,
            restore=restore,
            start_timeout_s=self._settings.triton.start_timeout_s,
            limits=limits,
            silence=self.silence,
            stall_timeout_s=self._settings.triton.start_stall_timeout_s,
            # One that others run keeps what it has loaded, and cannot be ended from here.
            silence_timeout_s=self._settings.triton.silence_timeout_s if isinstance(launcher, EmbeddedTritonLauncher) else inf,
        )
        revivals = ModelRevivals(models, alone, oldest_s=lambda model: self.oldest_s(member.name, model))

        def stub_died(model: str, how: str) -> None:
            revivals.stub_died(model, how)
            died(member.name, model, how)

        watches = (revivals.run, partial(launcher.watch_stubs, stub_died))
        return TritonInstance(member.name, models, models.contents, supervisor, watches, revivals.suspect, revivals.explain_death)

    def attached(self, member: ServerState, endpoints: TritonEndpoints) -> TritonInstance:
        """Make the unit of a Triton that others run. Raises StartupError: its credentials cannot be used."""
        models = self._models(member, None, None, None)
        attachment = AttachedHealthCheck(
            upstream=self._connect(self.with_credentials(endpoints)),
            servers=member,
            restore=Restore(member.name, models, self.failures),
            start_timeout_s=self._settings.triton.start_timeout_s if member.is_needed else None,
        )
        return TritonInstance(member.name, models, None, attachment)

    def with_credentials(self, endpoints: TritonEndpoints) -> TritonEndpoints:
        """Return the endpoints of a Triton that others run, with what it is shown."""
        return replace(endpoints, credentials=self._credentials)

    def repository(self, state_dir: Path, *, is_ours: bool = True) -> ManagedRepository:
        """Make the model repository from which the Triton of that state folder loads; which backends it has is
        known if it is ours. Raises StartupError.
        """
        triton = self._settings.triton
        others = None if triton.tritonserver is None or not is_ours else own_installation(triton.tritonserver.absolute()).backends
        return ManagedRepository(
            self._sources,
            state_dir,
            config_name=config_name_in_force(triton.model_config_name),
            parameters=triton.model_parameter,
            backends=backend_names(triton.python_backends.absolute(), others) if is_ours else None,
        )

    def _state_dir(self, name: str) -> Path:
        state_dir = self._settings.process.state_dir
        return state_dir if name == ONLY else state_dir / "servers" / name

    def _above(self, state_dir: Path) -> list[Path]:
        """Return the parents of a server's folder, from the state folder down; empty for the only one."""
        top = self._settings.process.state_dir.absolute()
        return [each for each in reversed(state_dir.absolute().parents) if each.is_relative_to(top)]

    def _models(
        self,
        member: ServerState,
        repository: ModelRepository | None,
        contents: LoadedContents | None,
        watch: LoadWatch | None,
        stubs: ModelStubs[Any] | None = None,
    ) -> ModelService:
        return ModelService(
            servers=member,
            repository=repository,
            load=[] if self._is_fleet else models_to_load_at_start(self._settings, repository),
            restores=not self._is_fleet,
            load_timeout_s=self._settings.triton.load_timeout_s,
            contents=contents,
            tiers=None if repository is None else self._tiers,
            watch=watch,
            stubs=stubs,
        )

    def _loaded_contents(self, repository: ManagedRepository, board: FingerprintBoard) -> LoadedContents | None:
        """Track the contents of loaded models; None where others may load models too, so that nobody knows
        what is loaded.
        """
        triton = self._settings.triton
        # Without the lock any client of Triton may load models past this gateway.
        if not triton.lock_model_control:
            return None
        files = ModelFiles(
            repository.root,
            config_name=config_name_in_force(triton.model_config_name),
            python_backends=triton.python_backends.absolute(),
            image=self._settings.node.attach_image,
        )
        return LoadedContents(files, board)

    def _connect(self, endpoints: Endpoints) -> Upstream:
        return connect(self._settings.gateway, endpoints)


def _credentials(triton: TritonSettings) -> UpstreamCredentials:
    """Return the credentials for Tritons that others run, after trying their files. Raises StartupError."""
    ca, certificate, key = (
        str(path.absolute()) if path else "" for path in (triton.triton_ca, triton.triton_certificate, triton.triton_key)
    )
    headers = () if triton.triton_header_file is None else read_headers(triton.triton_header_file)
    credentials = UpstreamCredentials(ca, certificate, key, headers)
    make_context(credentials, HTTP)
    return credentials


class ModelRestorer(Protocol):
    """The part of `models/model_service` that `Restore` needs."""

    async def restore(self, upstream: Upstream) -> list[LoadFailure]: ...


class Restore:
    """Callback after each start of one Triton: loads its models again and records those that failed.

    The failures replace those of the unit's own previous start; other units' failures stay.
    """

    def __init__(self, name: str, models: ModelRestorer, failures: dict[str, list[LoadFailure]]) -> None:
        self._name = name
        self._models = models
        self._failures = failures

    async def __call__(self, upstream: Upstream) -> None:
        self._failures.pop(self._name, None)
        if failures := await self._models.restore(upstream):
            self._failures[self._name] = failures  # no empty lists: servers that leave the fleet must leave nothing behind


def models_to_load_at_start(settings: Settings, repository: ModelRepository | None) -> list[str]:
    """Return the models to load at the start: those of `--load`, else the project's own that are in the
    repository.
    """
    if settings.triton.load is not None:
        return settings.triton.load
    if repository is None:
        return []
    return [name for name in DEFAULT_MODELS if name in repository.names()]
