"""Wires the Tritons of one gateway: a single one, or a fleet of embedded or attached ones.

This module decides which Tritons there are and makes the fleet service around them; `app/upstreams/triton_instances` wires
each Triton.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from hashlib import sha256
from uuid import uuid4

from pydantic import SecretStr

from control_plane.app.upstreams.kubernetes import make_lease, make_pods
from control_plane.app.upstreams.model_sources import ModelSources
from control_plane.app.upstreams.nodes import Awaited, NodeUnit, NodeUnits, ProcessesBoard
from control_plane.app.upstreams.triton_instances import TritonInstance, TritonInstances
from control_plane.core.endpoints import ListedServer, server_names
from control_plane.core.errors import StartupError
from control_plane.fleet.adapters.local_memory import LocalFleetMemory
from control_plane.fleet.adapters.own_instance import OwnInstance
from control_plane.fleet.adapters.servers_file import ServersFile
from control_plane.fleet.administration import FleetModels
from control_plane.fleet.domain.counts import FleetCounts
from control_plane.fleet.fleet_service import FleetOptions, FleetService
from control_plane.fleet.leadership.election import LeaderElection
from control_plane.fleet.membership.members import FleetMembers
from control_plane.fleet.ports import FleetMemory, LeaderChannel, ServerList
from control_plane.inference.domain.queries_of_death import Finding, Verdict
from control_plane.metering.ports import ModelCosts
from control_plane.models.adapters.model_descriptions import ModelDescriptionFiles
from control_plane.models.fleet_fingerprints import FleetFingerprints
from control_plane.models.model_service import LoadFailure, ModelService
from control_plane.settings import Settings, parse_triton_urls
from control_plane.triton.config_name import config_name_in_force
from control_plane.triton.server_state import ServerObserver, ServerState
from control_plane.triton.servers import Servers
from control_plane.triton.silence_watch import TellSuspect
from control_plane.triton.supervisor import Supervisor

_log = logging.getLogger(__name__)

WITHOUT_NODE = (
    "no cached responses, tiers, latency tables or measured sizes, since nobody can know what others load there; "
    "`tidegate node` beside it changes that"
)
"""What a Triton that others run lacks without a node."""

_DEFAULT_FLEET_NAME = "default"
"""Default name of a fleet with `--servers-file` or `--triton-service`: a name made from its servers would change with them."""


class Tritons:
    """All Tritons of a gateway, and the fleet service if there are several or models are loaded on demand."""

    def __init__(self, settings: Settings, follower: ServerObserver, board: ProcessesBoard) -> None:
        """Wire everything; nothing is started yet.

        `follower` is told which Tritons are up, `board` which contents are loaded. Raises StartupError.
        """
        self._settings = settings
        self.counts = FleetCounts()
        attached = parse_triton_urls(settings.triton.triton_url)
        _refuse_contradictions(settings, len(attached))
        sources = ModelSources(settings, self.counts)
        self._sources, self._tiers = sources.folders, sources.tiers
        is_fleet = settings.is_fleet
        self._units = TritonInstances(settings, sources=self._sources, tiers=self._tiers, is_fleet=is_fleet)
        self._nodes = self._make_nodes(board)
        # A single Triton's end makes all fingerprints unknown, so `follower` forgets them. In a fleet other
        # servers may still have the models: `FleetFingerprints` combines the servers' boards there.
        self.servers = Servers(None if is_fleet else follower, ())
        self._failures: list[LoadFailure] = []
        self.fleet = self._make_fleet() if is_fleet else None
        self._pods = make_pods(settings.fleet) if settings.fleet.triton_service else None
        if self.fleet is not None:
            self.fleet.notes = self.notes
        self._members = self._listed_members()
        self.units: list[TritonInstance | NodeUnit] = []
        self.models: ModelService | FleetModels
        if self.fleet is not None:
            self.models = self.fleet.models
        if self._members is None:
            self.units += self._attached(attached) if attached else self._embedded(board)
        if self.fleet is None:
            (only,) = self.units
            assert isinstance(only, TritonInstance)
            self.models = only.models

    @property
    def suspect(self) -> TellSuspect | None:
        """Called with each model that seems to hang; None where nothing could be done about it."""
        return self.servers.suspect if self.fleet is None else self.fleet.router.suspect

    @property
    def failures(self) -> list[LoadFailure]:
        """Models that were to be loaded at the start and failed."""
        return [*(failure for each in self._units.failures.values() for failure in each), *self._failures]

    async def open(self) -> None:
        """Load a fleet's models of `--load`, once all servers are up; a single Triton loads its own when it
        starts.
        """
        if self.fleet is not None:
            self._failures += await self.fleet.open(self._settings.triton.load or [])

    async def run(self) -> None:
        """Run all Tritons and the fleet service until cancelled. Raises StartupError, in a group."""
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
                tasks.create_task(unit.run(), name=f"unit-{unit.name}")
            if self._pods is not None:
                tasks.create_task(self._pods.run(), name="triton-service")
            if self._members is not None:
                tasks.create_task(self._members.run(), name="fleet-members")

    def dependents_of(self, model: str) -> set[str]:
        """Return the models loaded on any server that depend on this one: ensembles, and models whose code
        may call it.
        """
        return {each for unit in self.units if unit.contents is not None for each in unit.contents.dependents_of(model)} | (
            self._nodes.dependents_of(model)
        )

    def _make_fleet(self) -> FleetService:
        settings = self._settings
        config_name = config_name_in_force(settings.triton.model_config_name)
        parameters, url = settings.triton.model_parameter, self._shared_url()
        if url is not None:
            _log.info("this gateway belongs to fleet %r: all gateways that share its servers must log the same name", self.fleet_name)
        return FleetService(
            self.servers,
            ModelDescriptionFiles(self._sources, config_name=config_name, parameters=parameters),
            LeaderElection(make_lease(settings.fleet, url, self.fleet_name), holder=uuid4().hex),
            memory=self._make_memory(url),
            options=FleetOptions(
                budget_bytes=settings.fleet.memory_budget,
                load_timeout_s=settings.triton.load_timeout_s,
                wait_s=settings.fleet.load_wait_s,
                hedging=settings.fleet.hedging,
            ),
            tiers=self._tiers,
            channel=self._make_channel(url),
            counts=self.counts,
            require_loadable=None if settings.is_attached else self._units.repository(settings.process.state_dir).require_loadable,
        )

    def _make_memory(self, url: SecretStr | None) -> FleetMemory:
        if url is None:
            return LocalFleetMemory(self._settings.process.state_dir / "fleet-memory.json")
        from control_plane.fleet.adapters.redis_memory import make_redis_fleet_memory  # here: as in `stores`

        return make_redis_fleet_memory(url, fleet=self.fleet_name)

    def _make_channel(self, url: SecretStr | None) -> LeaderChannel | None:
        if url is None:
            return None
        from control_plane.fleet.adapters.redis_leader_requests import make_redis_leader_channel  # here: as in `stores`

        return make_redis_leader_channel(url, fleet=self.fleet_name)

    @property
    def fleet_name(self) -> str:
        """Name of the fleet, equal on all gateways that list the same Tritons in the same spelling, in any
        order.

        With `--servers-file` or `--triton-service` it does not depend on the list, so that it stays when servers join or leave.
        """
        fleet = self._settings.fleet
        if fleet.fleet_name or fleet.is_listed:
            return fleet.fleet_name or _DEFAULT_FLEET_NAME
        places = sorted(each.endpoints.address for each in parse_triton_urls(self._settings.triton.triton_url))
        return sha256(",".join(places).encode()).hexdigest()[:16]

    def _shared_url(self) -> SecretStr | None:
        """URL of the Redis through which gateways with the same Tritons elect a leader; None for embedded
        Tritons.

        Embedded Tritons belong to this process alone, so there is nobody to agree with.
        """
        return self._settings.state.state_url if self._settings.is_attached else None

    def _make_nodes(self, board: ProcessesBoard) -> NodeUnits:
        return NodeUnits(self._settings, board, fleet_name=self.fleet_name, is_shared=self._shared_url() is not None)

    @property
    def costs(self) -> ModelCosts | None:
        """Costs of models as nodes tell them; None where there are none."""
        return self._nodes if self._settings.is_attached else None

    def notes(self) -> list[str]:
        """Return what some servers lack, and why, a sentence each."""
        if not self._settings.is_attached:
            return []
        without = [name for name in self.servers.members if not self._nodes.has(name)]
        lacks = [f"{', '.join(without)}: no node, so {WITHOUT_NODE}"] if without else []
        return lacks + self._nodes.unusable()

    def _embedded(self, board: ProcessesBoard) -> list[TritonInstance]:
        names = server_names(self._settings.fleet.servers)
        fleet = FleetFingerprints(board)
        alone = self.servers.under_repair if self.fleet is None else None
        units = [
            self._units.embedded(self.servers.add(name), board if len(names) == 1 else fleet.of_server(name), alone, self._stub_died)
            for name in names
        ]
        self._watch_for_hung(units)
        for unit, pool in zip(units, self._settings.fleet.pools or [""] * len(units), strict=True):
            self._join(unit, pool=pool)
        return units

    def _watch_for_hung(self, units: list[TritonInstance]) -> None:
        """Have models looked after that seem to hang, by whichever process's requests."""
        suspects = {unit.name: unit.suspect for unit in units}

        def suspect(server: str, model: str, since_s: float) -> None:
            suspects[server](model, since_s)

        self.servers.suspect = suspect
        if self.fleet is not None:
            self.fleet.router.suspect = suspect

    def follow_awaited(self, oldest_s: Callable[[str, str], float]) -> None:
        """Ask `oldest_s` when workers have sent the first request to a server's model that they wait for."""
        self._units.oldest_s = oldest_s

    def tell_nodes(self, awaited: Awaited, costs_changed: Callable[[], None]) -> None:
        """Have nodes told which requests this gateway's processes wait for; call `costs_changed` when `costs` may be read
        anew."""
        self._nodes.awaited, self._nodes.on_costs = awaited, costs_changed

    def found_out(self, finding: Finding) -> None:
        """Take in what a process has found out about a request: deaths under a guilty one do not count in back-offs."""
        model, _ = finding.digest
        if finding.record is None or finding.record.verdict is not Verdict.GUILTY:
            return
        for server in finding.record.deaths:
            own = [unit for unit in self.units if unit.name == server and isinstance(unit, TritonInstance)]
            for unit in own:
                if isinstance(unit.triton, Supervisor) and not finding.is_stub:
                    unit.triton.explain_death()
                if self.fleet is None:
                    unit.explain_death(model)
            if self.fleet is not None:
                self.fleet.router.explain_death(server, model)

    def _stub_died(self, server: str, model: str, how: str) -> None:
        if self.fleet is not None:
            self.fleet.router.stub_died(server, model, how)

    def _attached(self, listed: list[ListedServer]) -> list[TritonInstance | NodeUnit]:
        units = [self._unit_of(self.servers.add(each.name), each) for each in listed]
        for unit, each in zip(units, listed, strict=True):
            self._join(unit, listed=each)
        return units

    def _unit_of(self, member: ServerState, listed: ListedServer) -> TritonInstance | NodeUnit:
        """Make the unit of a Triton that others run, by its node where it has one. Raises StartupError."""
        if listed.endpoints.node and self.fleet is not None:
            self.fleet.router.suspect = self._nodes.suspect
            return self._nodes.unit(member, self._units.with_credentials(listed.endpoints), self.fleet)
        _log.info("server %s, at %s, has no node: %s", listed.name, listed.endpoints.address, WITHOUT_NODE, extra={"server": listed.name})
        return self._units.attached(member, listed.endpoints)

    def _listed_members(self) -> FleetMembers | None:
        """Make the membership service of a fleet whose servers join and leave, as a file or Kubernetes says."""
        path, start_timeout_s = self._settings.fleet.servers_file, self._settings.triton.start_timeout_s
        listed: ServerList | None = self._pods if path is None else ServersFile(path)
        if listed is None or self.fleet is None:
            return None
        return FleetMembers(listed, self.servers, self.fleet, self._join_listed, first=listed.read(), start_timeout_s=start_timeout_s)

    def _join_listed(self, listed: ListedServer) -> TritonInstance | NodeUnit:
        member = self.servers.add(listed.name, is_needed=False)
        try:
            unit = self._unit_of(member, listed)
        except StartupError:
            self.servers.remove(listed.name)
            raise
        self._join(unit, listed=listed)
        return unit

    def _join(self, unit: TritonInstance | NodeUnit, *, pool: str = "", listed: ListedServer | None = None) -> None:
        if self.fleet is not None:
            instance = unit.instance if isinstance(unit, NodeUnit) else OwnInstance(unit.models, unit.triton.held_memory)
            self.fleet.join(unit.name, instance, pool=pool, listed=listed)


def _refuse_contradictions(settings: Settings, attached: int) -> None:
    triton, fleet = settings.triton, settings.fleet
    if fleet.servers_file is not None and fleet.triton_service:
        raise StartupError("--servers-file and --triton-service each list all servers of a fleet; leave one of them out")
    if fleet.is_listed and (attached or fleet.servers > 1):
        other = "--triton-url" if attached else "--servers"
        listed = "--servers-file" if fleet.servers_file is not None else "--triton-service"
        raise StartupError(f"{listed} lists all servers of a fleet; leave {other} out")
    if settings.is_attached and triton.model_parameter:
        raise StartupError("--model-parameter is for the embedded Triton; attached Tritons have configurations of their own")
    if settings.is_attached and (triton.triton_arg or triton.triton_user):
        setting = "--triton-arg" if triton.triton_arg else "--triton-user"
        raise StartupError(f"{setting} is for the embedded Triton; attached Tritons stay as they were started")
    if fleet.kubernetes_lease and not settings.is_fleet:
        raise StartupError("--kubernetes-lease is for a fleet that gateways share; leave it out")
    if attached and fleet.servers > 1:
        raise StartupError("--servers is for embedded Tritons; list attached ones in --triton-url, separated by commas")
    if fleet.pools and settings.is_attached:
        raise StartupError(
            "--pools is for embedded Tritons; for attached ones each entry of --servers-file or --triton-url (?pool=NAME) names its pool"
        )
    if fleet.pools and len(fleet.pools) != fleet.servers:
        raise StartupError(f"--pools names {len(fleet.pools)} for {fleet.servers} of --servers; name one for each, in their order")
