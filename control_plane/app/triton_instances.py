"""One Triton of a gateway, wired: its supervisor (embedded) or its watch (attached), its repository and its
models.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from control_plane.app.data_plane import connect
from control_plane.core.endpoints import ONLY, Endpoints
from control_plane.host.cpu_affinity import allowed_cpus
from control_plane.models.adapters.managed_repository import ManagedRepository
from control_plane.models.adapters.model_files import ModelFiles
from control_plane.models.loaded_contents import LoadedContents
from control_plane.models.model_service import LoadFailure, ModelService
from control_plane.models.ports import FingerprintBoard, LoadWatch, ModelRepository
from control_plane.models.tiers.warm_tier_manager import WarmTierManager
from control_plane.settings import Settings
from control_plane.triton.attachment import AttachedHealthCheck
from control_plane.triton.config_name import config_name_in_force
from control_plane.triton.embedded.backend_directory import backend_names
from control_plane.triton.embedded.process import EmbeddedTritonLauncher
from control_plane.triton.ports import Upstream
from control_plane.triton.servers import ServerState
from control_plane.triton.supervisor import Supervisor

DEFAULT_MODELS = ("text_embedding",)
"""Models of the project that are loaded at the start when `--load` is not given."""


@dataclass(frozen=True, slots=True)
class TritonInstance:
    """One Triton instance with the services that belong to it."""

    name: str
    models: ModelService
    contents: LoadedContents | None
    triton: Supervisor | AttachedHealthCheck

    async def run(self) -> None:
        """Run the embedded Triton, or watch the attached one, until cancelled. Raises StartupError, in a
        group.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.models.run(), name=f"models-{self.name}")
            tasks.create_task(self.triton.run(), name=self.name)


class TritonInstances:
    """Factory of `TritonInstance`s, embedded or attached."""

    def __init__(self, settings: Settings, *, sources: list[Path], tiers: WarmTierManager | None, is_fleet: bool) -> None:
        """`sources` are the folders of models on this machine. With `is_fleet` units load nothing by
        themselves at the start.
        """
        self._settings = settings
        self._sources = sources
        self._tiers = tiers
        self._is_fleet = is_fleet
        self.failures: dict[str, list[LoadFailure]] = {}
        """Unit's name -> models that failed to load at its latest start."""

    def embedded(self, member: ServerState, board: FingerprintBoard) -> TritonInstance:
        """Make the unit of a Triton that this process starts. Raises StartupError."""
        settings, triton = self._settings, self._settings.triton
        state_dir = self._state_dir(member.name)
        repository = self.repository(state_dir)
        contents = self._loaded_contents(repository, board)
        # All CPUs must be named if the data plane is pinned: Triton would inherit the pinned process's CPUs.
        cpus = triton.triton_cpus or (allowed_cpus() if settings.process.gateway_cpus else ())
        launcher = EmbeddedTritonLauncher(
            triton,
            state_dir,
            cpus=cpus,
            header_forward_pattern=settings.gateway.header_forward_pattern,
            within=self._above(state_dir),
        )
        models = self._models(member, repository, contents, launcher)
        supervisor = Supervisor(
            launcher=launcher,
            connect=self._connect,
            servers=member,
            restore=Restore(member.name, models, self.failures),
            start_timeout_s=triton.start_timeout_s,
        )
        return TritonInstance(member.name, models, contents, supervisor)

    def attached(self, member: ServerState, endpoints: Endpoints) -> TritonInstance:
        """Make the unit of a Triton that others run."""
        models = self._models(member, None, None, None)
        attachment = AttachedHealthCheck(
            upstream=self._connect(endpoints),
            servers=member,
            restore=Restore(member.name, models, self.failures),
            start_timeout_s=self._settings.triton.start_timeout_s if member.is_needed else None,
        )
        return TritonInstance(member.name, models, None, attachment)

    def repository(self, state_dir: Path) -> ManagedRepository:
        """Make the model repository from which the embedded Triton of that state folder loads. Raises
        StartupError.
        """
        triton = self._settings.triton
        return ManagedRepository(
            self._sources,
            state_dir,
            config_name=config_name_in_force(triton.model_config_name),
            parameters=triton.model_parameter,
            backends=backend_names(triton.python_backends.absolute()),
        )

    def _state_dir(self, name: str) -> Path:
        state_dir = self._settings.process.state_dir
        return state_dir if name == ONLY else state_dir / "servers" / name

    def _above(self, state_dir: Path) -> list[Path]:
        """Return the parents of a server's folder, from the state folder down; empty for the only one."""
        top = self._settings.process.state_dir.absolute()
        return [each for each in reversed(state_dir.absolute().parents) if each.is_relative_to(top)]

    def _models(
        self, member: ServerState, repository: ModelRepository | None, contents: LoadedContents | None, watch: LoadWatch | None
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
        )

    def _loaded_contents(self, repository: ManagedRepository, board: FingerprintBoard) -> LoadedContents | None:
        """Track the contents of loaded models; None where others may load models too, so that nobody knows
        what is loaded.
        """
        triton = self._settings.triton
        if not triton.lock_model_control:
            return None
        files = ModelFiles(
            repository.root, config_name=config_name_in_force(triton.model_config_name), python_backends=triton.python_backends.absolute()
        )
        return LoadedContents(files, board)

    def _connect(self, endpoints: Endpoints) -> Upstream:
        return connect(self._settings.gateway, endpoints)


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
