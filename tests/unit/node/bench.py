"""A node and its gateways in one process and in virtual time: the real services on both sides, over links that can
be cut, frozen, or broken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import uuid4

from control_plane.core.errors import UpstreamUnavailable
from control_plane.core.fingerprint import Fingerprint
from control_plane.core.held_memory import HeldMemory
from control_plane.fleet.adapters.own_instance import OwnInstance
from control_plane.metering.domain.compute_units import ModelCost
from control_plane.models.domain.description import DescribedModel, ModelSpec
from control_plane.models.fingerprints import Fingerprints
from control_plane.models.fleet_fingerprints import FleetFingerprints
from control_plane.models.loaded_contents import LoadedContents
from control_plane.models.model_service import ModelService
from control_plane.node.board import NodeBoard
from control_plane.node.domain.fence import Term
from control_plane.node.domain.messages import Message, decode, encode
from control_plane.node.domain.promises import HELD_S, Promises
from control_plane.node.reliance import NodeReliance
from control_plane.node.remote_instance import RemoteInstance
from control_plane.node.remote_node import RemoteNode
from control_plane.node.service import NodeService
from control_plane.triton.servers import Servers
from tests.fakes import FakeControl, FakeUpstream
from tests.fakes.reading import FakeReading

SERVER = "s0"


@dataclass(eq=False)
class Wire:
    """What is on its way between both ends of one connection."""

    to_node: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)
    to_gateway: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)
    thawed: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared while nothing arrives, though nothing is lost: a half-open connection."""
    fleet: str = "fleet"
    gateway: str = ""
    incarnation: str = ""

    def __post_init__(self) -> None:
        self.thawed.set()


class End:
    """`node/ports.Link` over a `Wire`."""

    def __init__(self, wire: Wire, received: asyncio.Queue[bytes | None], sent: asyncio.Queue[bytes | None]) -> None:
        self._wire = wire
        self._received = received
        self._sent = sent
        self._is_closed = False
        self.fleet, self.gateway, self.incarnation = wire.fleet, wire.gateway, wire.incarnation
        self.said: list[Message] = []

    def send(self, message: Message) -> None:
        if not self._is_closed:
            self.said.append(message)
            self._sent.put_nowait(encode(message))

    async def receive(self) -> Message | None:
        body = await self._received.get()
        while not self._wire.thawed.is_set() and not self._is_closed:
            await asyncio.sleep(0.01)
        return None if body is None or self._is_closed else decode(body)

    async def flush(self, *, timeout_s: float) -> None:
        await asyncio.sleep(0)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._sent.put_nowait(None)
            self._received.put_nowait(None)


class NodeFilesOf:
    """`node/ports.NodeFiles` of models that are in memory."""

    def __init__(self, names: str) -> None:
        self.models = {name: DescribedModel(ModelSpec(name, resident_bytes=10), 5) for name in names}
        self.cold: dict[str, DescribedModel] = {}
        """What there is to say of models once they have been fetched."""
        self.held_now: list[str] = []

    def read(self) -> tuple[Mapping[str, DescribedModel], Mapping[str, ModelCost]]:
        return dict(self.models), {name: ModelCost() for name in self.models}

    def state(self) -> object:
        return sorted(self.models)

    def put_in_store(self, model: DescribedModel) -> None:
        """Have a model be one that is fetched when it is held."""
        self.cold[model.spec.name] = model
        self.models[model.spec.name] = DescribedModel(ModelSpec(model.spec.name), 0, fetch_s=3.0)

    @asynccontextmanager
    async def held(self, name: str) -> AsyncIterator[None]:
        if name in self.cold:
            await asyncio.sleep(3.0)
            self.models[name] = self.cold.pop(name)
        self.held_now.append(name)
        try:
            yield
        finally:
            self.held_now.remove(name)


class Bench:
    """One node."""

    def __init__(self, names: str = "ab") -> None:
        self.now_s = asyncio.get_running_loop().time
        self.servers = Servers(None, (SERVER,))
        self.member = self.servers.members[SERVER]
        self.control = FakeControl()
        self.reading = FakeReading(dict.fromkeys(names, "first"))
        # As if it had been started long ago, unless a test says otherwise.
        self.board = NodeBoard(Promises(self.now_s() - HELD_S), now_s=self.now_s)
        contents = LoadedContents(self.reading, self.board)
        self.contents = contents
        self.models = ModelService(servers=self.member, repository=None, load=[], load_timeout_s=300.0, contents=contents, restores=False)
        self.files = NodeFilesOf(names)
        self.suspected: list[tuple[str, float]] = []
        self.service = NodeService(
            OwnInstance(self.models, lambda: HeldMemory(1000, 50)),
            self.member,
            self.board,
            self.files,
            suspect=lambda model, since_s: self.suspected.append((model, since_s)),
            now_s=self.now_s,
        )
        self.servers.follow(self.service)
        self.serving: list[asyncio.Task[None]] = []
        self.gateways: list[Gateway] = []

    async def start_triton(self) -> FakeUpstream:
        """Start a Triton, in place of the one that runs."""
        self.control = FakeControl()
        upstream = FakeUpstream(control=self.control)
        await self.contents.restart(upstream)
        self.member.up(upstream)
        return upstream

    def gateway(self, *, fleet: str = "fleet", token: int = 1, ahead_s: float = 0.0) -> Gateway:
        """Make a gateway, which connects by itself; its clock is so far ahead of the node's."""
        made = Gateway(self, fleet, token, ahead_s)
        self.gateways.append(made)
        return made

    def accept(self, wire: Wire) -> None:
        end = End(wire, wire.to_node, wire.to_gateway)
        self.serving.append(asyncio.get_running_loop().create_task(self.service.serve(end)))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Bench]:
        loop = asyncio.get_running_loop()
        await self.service.open()
        await self.start_triton()
        owners = [loop.create_task(self.models.run()), loop.create_task(self.service.run())]
        try:
            yield self
        finally:
            for gateway in self.gateways:
                gateway.run.cancel()
            await asyncio.gather(*(gateway.run for gateway in self.gateways), return_exceptions=True)
            for task in (*self.serving, *owners):
                task.cancel()
            await asyncio.wait([*self.serving, *owners])


class Workers:
    """`models/ports.FingerprintBoard` of all of a gateway's processes, which may be late to apply what they are told."""

    def __init__(self, fingerprints: Fingerprints) -> None:
        self._fingerprints = fingerprints
        self.are_quick = asyncio.Event()
        self.are_quick.set()

    async def publish(self, changes: Mapping[str, Fingerprint | None]) -> None:
        await self.are_quick.wait()
        await self._fingerprints.publish(changes)

    async def make_unknown(self, models: Iterable[str]) -> None:
        await self._fingerprints.make_unknown(models)

    async def forget(self, models: Iterable[str]) -> None:
        await self._fingerprints.forget(models)


class Gateway:
    """One gateway of a node: the services of its side, and its own fingerprints."""

    def __init__(self, bench: Bench, fleet: str, token: int, ahead_s: float = 0.0) -> None:
        def now_s() -> float:
            return bench.now_s() + ahead_s

        self.address = "node:1"
        self.token: int | None = token
        self.wires: list[Wire] = []
        self.is_reachable = True
        self.is_silenced = False
        self.fingerprints = Fingerprints(now_s=now_s)
        self.indexes: list[list[str]] = []
        self.deaths: list[tuple[str, str, str]] = []
        self.awaited: dict[str, float] = {}
        self._bench = bench
        self._fleet = fleet
        reliance = NodeReliance(self.fingerprints.rely_until)
        self.workers = Workers(self.fingerprints)
        self.board = FleetFingerprints(self.workers)
        self.node = RemoteNode(
            SERVER,
            self,
            self.board.of_server(SERVER),
            relies_until=reliance.relies_until,
            awaited=lambda server: self.awaited,
            stub_died=lambda server, model, how: self.deaths.append((server, model, how)),
            now_s=now_s,
        )
        self.node.on_index = lambda index: self.indexes.append([f"{each.name} {each.state.value}" for each in index])
        self.instance = RemoteInstance(self.node, term=self.term)
        self.run = asyncio.get_running_loop().create_task(self.node.run())

    def term(self) -> Term:
        if self.token is None:
            raise UpstreamUnavailable("not the leader")
        return Term(self._fleet, self.token)

    async def connect(self, *, timeout_s: float) -> End:
        """`node/ports.NodeConnector`."""
        if self.is_silenced:
            await asyncio.sleep(timeout_s)
            raise TimeoutError
        if not self.is_reachable:
            raise ConnectionRefusedError("connection refused")
        wire = Wire(fleet=self._fleet, gateway=uuid4().hex)
        self.wires.append(wire)
        self._bench.accept(wire)
        return End(wire, wire.to_gateway, wire.to_node)

    async def connected(self) -> Gateway:
        await self.node.wait_until(lambda: self.node.is_connected)
        return self

    def freeze(self) -> None:
        """Have nothing arrive at either side of the connection."""
        self.wires[-1].thawed.clear()

    def thaw(self) -> None:
        self.wires[-1].thawed.set()

    def silence(self) -> None:
        """Have everything be lost on the way to the node, also attempts to connect."""
        self.is_silenced = True
        self.freeze()

    async def load(self, name: str) -> None:
        async with self.instance.prepared(name) as prepared:
            await prepared.load()

    def knows(self, name: str) -> bytes | None:
        found = self.fingerprints.get(name)
        return None if found is None else found.digest
