"""The Tritons of one gateway, wired: for each what runs or watches it, what it is to load, and what is known of what it has loaded."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

from pydantic import SecretStr

from control_plane.adapters.cpu_affinity import allowed_cpus
from control_plane.adapters.embedded_triton.process import EmbeddedTritonLauncher
from control_plane.adapters.local_lease import LocalLease
from control_plane.adapters.managed_repository import ManagedRepository
from control_plane.adapters.model_config import composing_models, config_name_in_force
from control_plane.adapters.model_descriptions import ModelDescriptionFiles
from control_plane.adapters.model_files import ModelFiles
from control_plane.adapters.model_store import FsspecModelStore
from control_plane.adapters.move_log import MoveLog
from control_plane.adapters.redis_lease import make_redis_lease
from control_plane.adapters.redis_owner_line import make_redis_owner_line
from control_plane.adapters.warm_tier.tier import DiskWarmTier
from control_plane.data_plane import connect
from control_plane.domain.endpoints import TritonEndpoints
from control_plane.domain.errors import StartupError
from control_plane.ports import FingerprintBoard, ModelRepository, Upstream
from control_plane.services.attachment import Attachment
from control_plane.services.fleet import FleetService, FleetUnit
from control_plane.services.fleet_fingerprints import FleetFingerprints
from control_plane.services.fleet_models import FleetModels
from control_plane.services.fleet_state import NO_BUDGET
from control_plane.services.loaded_contents import LoadedContents
from control_plane.services.model_tiers import ModelTiers
from control_plane.services.models import LoadFailure, ModelService
from control_plane.services.ownership import Ownership
from control_plane.services.servers import ONLY, Follower, Member, Servers
from control_plane.services.supervisor import Supervisor
from control_plane.settings import Settings, parse_triton_urls

DEFAULT_MODELS = ("text_embedding",)
"""What the project serves when nothing is asked for."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One Triton and what belongs to it."""

    name: str
    models: ModelService
    contents: LoadedContents | None
    triton: Supervisor | Attachment


class Tritons:
    """All of them; one, unless a fleet is asked for."""

    def __init__(self, settings: Settings, follower: Follower, board: FingerprintBoard) -> None:
        """`follower` is told where requests can go, `board` what is loaded. Nothing is started yet. Raises StartupError."""
        self._settings = settings
        endpoints = parse_triton_urls(settings.triton.triton_url)
        _refuse_contradictions(settings, len(endpoints))
        count = len(endpoints) or settings.fleet.servers
        self._tiers = self._make_tiers() if settings.triton.model_store and not endpoints else None
        names = (ONLY,) if count == 1 else tuple(f"{ONLY}-{number}" for number in range(count))
        self._is_fleet = settings.fleet.is_on or count > 1
        self.servers = Servers(follower, names)
        self.failures: list[LoadFailure] = []
        fleet = FleetFingerprints(board)
        boards: dict[str, FingerprintBoard] = {name: board if count == 1 else fleet.of_server(name) for name in names}
        if endpoints:
            self.units = [self._attached(self.servers.members[name], at) for name, at in zip(names, endpoints, strict=True)]
        else:
            self.units = [self._embedded(self.servers.members[name], boards[name]) for name in names]
        self.fleet = self._make_fleet() if self._is_fleet else None
        self.models: ModelService | FleetModels = self.units[0].models if self.fleet is None else self.fleet.models

    async def open(self) -> None:
        """All are up: load what a fleet is to have from the start. (One by itself has it already.)"""
        if self.fleet is not None:
            self.failures += await self.fleet.open(self._settings.triton.load or [])

    async def run(self) -> None:
        """Run all of them until cancelled. Raises StartupError, in a group."""
        if self._tiers is None:
            await self._run()
            return
        await self._tiers.open()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._tiers.run(), name="model-tiers")
                tasks.create_task(self._run(), name="tritons-themselves")
        finally:
            await self._tiers.close()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            if self.fleet is not None:
                tasks.create_task(self.fleet.run(), name="fleet")
            for unit in self.units:
                tasks.create_task(unit.models.run(), name=f"models-{unit.name}")
                tasks.create_task(unit.triton.run(), name=unit.name)

    def dependents_of(self, model: str) -> set[str]:
        """The models loaded anywhere that need this one."""
        return {each for unit in self.units if unit.contents is not None for each in unit.contents.dependents_of(model)}

    @property
    def _sources(self) -> list[Path]:
        """Of models that are on this machine."""
        own = self._settings.triton.model_repository
        return own if self._tiers is None else [*own, self._warm_dir]

    @property
    def _warm_dir(self) -> Path:
        return self._settings.triton.warm_dir or self._settings.process.state_dir.absolute() / "warm"

    def _make_tiers(self) -> ModelTiers:
        triton = self._settings.triton
        config_name = config_name_in_force(triton.model_config_name)
        self._warm_dir.mkdir(parents=True, exist_ok=True)
        own = ManagedRepository(triton.model_repository, self._settings.process.state_dir, config_name=config_name)
        return ModelTiers(
            stores=[FsspecModelStore(url) for url in triton.model_store],
            warm=DiskWarmTier(self._warm_dir, max_bytes=triton.warm_bytes),
            steps_of=lambda folder: composing_models(folder, config_name),
            observer=MoveLog(),
            taken=own.names,
        )

    def _make_fleet(self) -> FleetService:
        settings = self._settings
        config_name = config_name_in_force(settings.triton.model_config_name)
        parameters, url = settings.triton.model_parameter, self._shared_url()
        return FleetService(
            self.servers,
            {unit.name: FleetUnit(unit.models, unit.triton.resident_bytes) for unit in self.units},
            ModelDescriptionFiles(self._sources, config_name=config_name, parameters=parameters),
            Ownership(LocalLease() if url is None else make_redis_lease(url, fleet=self._fleet_name()), holder=uuid4().hex),
            budget_bytes=settings.fleet.memory_budget or NO_BUDGET,
            wait_s=settings.fleet.load_wait_s,
            load_timeout_s=settings.triton.load_timeout_s,
            tiers=self._tiers,
            line=None if url is None else make_redis_owner_line(url, fleet=self._fleet_name()),
        )

    def _fleet_name(self) -> str:
        """The same for all gateways before the same Tritons, however each names them in order."""
        endpoints = parse_triton_urls(self._settings.triton.triton_url)
        places = sorted(f"{each.host}:{each.grpc_port}" for each in endpoints)
        return sha256(",".join(places).encode()).hexdigest()[:16]

    def _shared_url(self) -> SecretStr | None:
        """Of the Redis by which gateways that may have the same Tritons agree; embedded ones are this process's alone."""
        return self._settings.state.state_url if self._settings.triton.triton_url else None

    def _embedded(self, member: Member, board: FingerprintBoard) -> Unit:
        settings, triton = self._settings, self._settings.triton
        state_dir = self._state_dir(member.name)
        config_name = config_name_in_force(triton.model_config_name)
        repository = ManagedRepository(self._sources, state_dir, config_name=config_name, parameters=triton.model_parameter)
        contents = self._loaded_contents(repository, board)
        models = self._models(member, repository, contents)
        # Else Triton would inherit this process's CPUs, which the data plane is about to keep to.
        cpus = triton.triton_cpus or (allowed_cpus() if settings.process.gateway_cpus else ())
        supervisor = Supervisor(
            launcher=EmbeddedTritonLauncher(triton, state_dir, cpus=cpus),
            connect=self._connect,
            servers=member,
            restore=self._restoring(models),
            start_timeout_s=triton.start_timeout_s,
        )
        return Unit(member.name, models, contents, supervisor)

    def _attached(self, member: Member, endpoints: TritonEndpoints) -> Unit:
        models = self._models(member, None, None)
        attachment = Attachment(
            upstream=self._connect(endpoints),
            servers=member,
            restore=self._restoring(models),
            start_timeout_s=self._settings.triton.start_timeout_s,
        )
        return Unit(member.name, models, None, attachment)

    def _state_dir(self, name: str) -> Path:
        state_dir = self._settings.process.state_dir
        return state_dir if name == ONLY else state_dir / "servers" / name

    def _models(self, member: Member, repository: ModelRepository | None, contents: LoadedContents | None) -> ModelService:
        return ModelService(
            servers=member,
            repository=repository,
            load=[] if self._is_fleet else models_to_load(self._settings, repository),
            restores=not self._is_fleet,
            load_timeout_s=self._settings.triton.load_timeout_s,
            contents=contents,
            tiers=None if repository is None else self._tiers,
        )

    def _loaded_contents(self, repository: ManagedRepository, board: FingerprintBoard) -> LoadedContents | None:
        """None where others may load: nobody tells us what."""
        triton = self._settings.triton
        if not triton.lock_model_control:
            return None
        files = ModelFiles(
            repository.root, config_name=config_name_in_force(triton.model_config_name), python_backends=triton.python_backends.absolute()
        )
        return LoadedContents(files, board)

    def _restoring(self, models: ModelService) -> _Restore:
        return _Restore(models, self.failures)

    def _connect(self, endpoints: TritonEndpoints) -> Upstream:
        return connect(self._settings.gateway, endpoints)


class _Restore:
    def __init__(self, models: ModelService, failures: list[LoadFailure]) -> None:
        self._models = models
        self._failures = failures

    async def __call__(self, upstream: Upstream) -> None:
        self._failures[:] = await self._models.restore(upstream)


def models_to_load(settings: Settings, repository: ModelRepository | None) -> list[str]:
    """At start: what is asked for, else the project's own where they are served."""
    if settings.triton.load is not None:
        return settings.triton.load
    if repository is None:
        return []
    return [name for name in DEFAULT_MODELS if name in repository.names()]


def _refuse_contradictions(settings: Settings, attached: int) -> None:
    triton, fleet = settings.triton, settings.fleet
    if attached and triton.model_parameter:
        raise StartupError("--model-parameter is for the embedded Triton; the one at --triton-url has configurations of its own")
    if attached and fleet.servers > 1:
        raise StartupError("--servers is for embedded Tritons; name those that others run in --triton-url, with commas between them")
    if (fleet.is_on or attached > 1) and settings.process.workers > 1:
        raise StartupError("--workers and a fleet (--servers, --memory-budget, several --triton-url) do not go together yet; leave one out")
