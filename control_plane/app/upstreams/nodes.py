"""Wires the nodes of one gateway: the connection, health check and `fleet/ports.ServerInstance` of each Triton with a node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol
from uuid import uuid4

from control_plane.app.upstreams.clients import connect
from control_plane.core.endpoints import TritonEndpoints
from control_plane.core.model import ModelVersion
from control_plane.fleet.fleet_service import FleetService
from control_plane.host.boot_clock import boot_time_s
from control_plane.metering.domain.compute_units import ModelCost
from control_plane.models.fleet_fingerprints import FleetFingerprints
from control_plane.models.ports import FingerprintBoard
from control_plane.node.adapters.connector import TcpNodeConnector
from control_plane.node.adapters.credentials import client_context, read_secret
from control_plane.node.attachment import NodeHealthCheck
from control_plane.node.domain.fence import Term
from control_plane.node.reliance import NodeReliance
from control_plane.node.remote_instance import RemoteInstance
from control_plane.node.remote_node import RemoteNode
from control_plane.settings import Settings, split_place
from control_plane.triton.server_state import ServerState


class ProcessesBoard(FingerprintBoard, Protocol):
    """Board of all processes of this gateway: `models/fingerprints`, or `workers/parent/workers`."""

    def rely_until(self, until_s: float) -> None:
        """Have all fingerprints unknown from that time on, as `Fingerprints.rely_until`."""


Awaited = Callable[[], Iterable[tuple[str, str, float]]]
"""Returns the server, the model and the time it was sent of each model's oldest request, of those that have waited
for long."""


@dataclass(frozen=True, slots=True)
class NodeUnit:
    """One Triton that a node runs, with what belongs to it in this gateway."""

    name: str
    node: RemoteNode
    instance: RemoteInstance
    health: NodeHealthCheck
    leave: Callable[[], None]
    contents: None = None
    """Always None: the node itself keeps track of the contents of loaded models."""

    async def run(self) -> None:
        """Keep the connection to the node, and watch over its Triton, until cancelled. Raises StartupError, in a
        group."""
        try:
            await self.health.run()
        finally:
            self.leave()


class NodeUnits:
    """Factory of `NodeUnit`s, and what all nodes say together: `metering/ports.ModelCosts`."""

    def __init__(self, settings: Settings, board: ProcessesBoard, *, fleet_name: str, is_shared: bool) -> None:
        """Gateways that share no state (not `is_shared`) are fleets of their own to a node. Raises StartupError: the
        secret or certificates cannot be used."""
        self._settings = settings
        self._fingerprints = FleetFingerprints(board)
        self._reliance = NodeReliance(board.rely_until)
        self._gateway = uuid4().hex[:12]
        self._fleet_name = fleet_name if is_shared else f"{fleet_name}, gateway {self._gateway} alone"
        self._secret = read_secret(settings.node)
        self._tls = client_context(settings.node)
        self._nodes: dict[str, RemoteNode] = {}
        self.awaited: Awaited = tuple
        self.on_costs: Callable[[], None] = lambda: None
        """Called when a node has told of other costs."""

    def unit(self, member: ServerState, endpoints: TritonEndpoints, fleet: FleetService) -> NodeUnit:
        """Make the unit of a Triton with a node. Raises StartupError."""
        name, (host, port) = member.name, split_place(endpoints.node)
        connector = TcpNodeConnector(host, port, fleet=self._fleet_name, gateway=self._gateway, secret=self._secret, tls=self._tls)
        node = self._nodes[name] = RemoteNode(
            name,
            connector,
            self._fingerprints.of_server(name),
            relies_until=self._reliance.relies_until,
            awaited=self._awaited_at,
            stub_died=fleet.router.stub_died,
            now_s=boot_time_s,
        )
        node.on_models = self._models_changed

        def observe(index: list[ModelVersion]) -> None:
            fleet.observe(name, index)

        node.on_index = observe
        instance = RemoteInstance(node, term=lambda: Term(self._fleet_name, fleet.require_leadership()))
        health = NodeHealthCheck(
            node,
            connect=lambda: connect(self._settings.gateway, endpoints),
            servers=member,
            term=lambda: None if fleet.token is None else Term(self._fleet_name, fleet.token),
            start_timeout_s=self._settings.triton.start_timeout_s if member.is_needed else None,
        )
        return NodeUnit(name, node, instance, health, lambda: self._leave(name, node))

    def has(self, server: str) -> bool:
        """Whether a server has a node."""
        return server in self._nodes

    def unusable(self) -> list[str]:
        """Return which nodes are away or refuse this gateway, and why, a sentence each."""
        return [f"{name}: {why}" for name, node in self._nodes.items() if (why := node.why_unusable)]

    def suspect(self, server: str, model: str, since_s: float) -> None:
        """Have a model looked after that seems to hang, if its server has a node."""
        if (node := self._nodes.get(server)) is not None:
            node.suspect(model, since_s)

    def dependents_of(self, model: str) -> set[str]:
        """Return the models of all nodes that depend on this one, as far as their configurations say."""
        return {name for node in self._nodes.values() for name, each in node.models.items() if model in each.steps}

    async def read(self) -> Mapping[str, ModelCost]:
        """See `metering/ports.ModelCosts`."""
        return {name: cost for node in self._nodes.values() for name, cost in node.costs.items()}

    def _models_changed(self) -> None:
        self.on_costs()

    def _awaited_at(self, server: str) -> dict[str, float]:
        now_s, oldest = asyncio.get_running_loop().time(), dict[str, float]()
        for at, model, sent_s in self.awaited():
            if at == server:
                oldest[model] = max(oldest.get(model, 0.0), now_s - sent_s)
        return oldest

    def _leave(self, name: str, node: RemoteNode) -> None:
        if self._nodes.get(name) is node:
            del self._nodes[name]
