"""A proxy as people write one: a rule says which of several Tritons gets a request, and each Triton's models come and go by LRU.

The rules are the very objects that `perf.simulate` runs (`Router`); here what they decide is done with real Tritons. Memory is free
when Triton says that the model is gone, as in `control_plane`: else the comparison would be with one that breaks its budget.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from control_plane.core.model import ModelState
from control_plane.fleet.domain.fleet import Fleet, ModelFacts, Replica, Server
from control_plane.fleet.simulation.router import RefuseRequest, Router
from control_plane.fleet.simulation.workload import Request, server_name
from control_plane.models.domain.description import ModelSpec
from perf.fleet.servers import Started

_CONTROL_S = 120.0
_POLL_S = 0.02


@dataclass(slots=True)
class Done:
    """Loads and unloads that the proxy had its Tritons do."""

    load_s: list[float] = field(default_factory=list)
    unload_s: list[float] = field(default_factory=list)
    """From the order to the moment when its memory was free."""


class Proxy:
    """Several Tritons behind one rule; `run` does the loading."""

    def __init__(self, tritons: Sequence[Started], router: Router, *, budget_bytes: int, resident_bytes: Mapping[str, int]) -> None:
        facts = {name: ModelFacts(ModelSpec(name, size), size, 0.0, 0.0) for name, size in resident_bytes.items()}
        self._fleet, self._router = Fleet(models=facts), router
        self.done = Done()
        self._sites: dict[str, _Site] = {}
        for number, triton in enumerate(tritons):
            server = Server(server_name(number), budget_bytes)
            self._fleet.add_server(server)
            self._sites[server.name] = _Site(server, triton, self._fleet, router, self.done)

    async def run(self) -> None:
        """Load what requests wait for, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for name, site in self._sites.items():
                tasks.create_task(site.run(), name=name)

    @asynccontextmanager
    async def serving(self, request: Request) -> AsyncIterator[str]:
        """The URL of a Triton that has the model, and keeps it until the block ends."""
        choice = self._router.choose(request, self._fleet, _now_s())
        assert not isinstance(choice, RefuseRequest)
        site = self._sites[choice.server]
        replica = await site.enter(request.model)
        try:
            yield site.url
        finally:
            site.leave(replica)


class _Site:
    def __init__(self, server: Server, triton: Started, fleet: Fleet, router: Router, done: Done) -> None:
        self.url = triton.url
        self._server, self._control = server, triton.upstream.control
        self._fleet, self._router, self._done = fleet, router, done
        self._waiting: dict[str, list[asyncio.Future[Replica]]] = {}
        """Requests that wait for a load, by model, in order."""
        self._asked_s: dict[str, float] = {}
        """When each model was asked for last."""
        self._changed = asyncio.Event()

    async def enter(self, model: str) -> Replica:
        replica = self._server.replicas.get(model)
        self._asked_s[model] = _now_s()
        if replica is not None:
            replica.last_used_s = self._asked_s[model]
        if replica is not None and replica.state is ModelState.READY:
            replica.in_flight += 1
            return replica
        waiting: asyncio.Future[Replica] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(model, []).append(waiting)
        self._changed.set()
        return await waiting

    def leave(self, replica: Replica) -> None:
        replica.in_flight -= 1
        self._changed.set()

    async def run(self) -> None:
        while True:
            model = next(iter(self._waiting), None)
            if model is None:
                await self._change()
            else:
                await self._load(model)

    async def _load(self, model: str) -> None:
        while (victims := self._router.victims(model, self._server.name, self._fleet, _now_s())) is None:
            await self._change()
        for victim in victims:
            await self._unload(self._server.replicas[victim])
        began_s = _now_s()
        needed_bytes = self._fleet.models[model].resident_bytes
        replica = Replica(model, ModelState.LOADING, needed_bytes, began_s, last_used_s=self._asked_s[model])
        self._fleet.put_replica(self._server, replica)
        await self._control.load(model, timeout_s=_CONTROL_S)
        self._done.load_s.append(_now_s() - began_s)
        replica.state = ModelState.READY
        waiting = self._waiting.pop(model)
        replica.in_flight = len(waiting)  # at once: it must not be gone as the next one's victim before they have begun
        for each in waiting:
            each.set_result(replica)

    async def _unload(self, replica: Replica) -> None:
        replica.state, replica.since_s = ModelState.UNLOADING, _now_s()
        while replica.in_flight:
            await self._change()
        began_s = _now_s()
        await self._control.unload(replica.model, timeout_s=_CONTROL_S)
        async with asyncio.timeout(_CONTROL_S):
            while any(line.state is not ModelState.UNAVAILABLE for line in await self._control.index() if line.name == replica.model):
                await asyncio.sleep(_POLL_S)
        self._done.unload_s.append(_now_s() - began_s)
        self._fleet.drop_replica(self._server, replica.model)

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


def _now_s() -> float:
    return asyncio.get_running_loop().time()
