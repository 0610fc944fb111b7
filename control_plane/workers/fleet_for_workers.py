"""Tells worker processes what their parent sees of the fleet, and takes what they report: they choose servers, and it loads.

The parent's side of a fleet with `--workers`; a worker's own is `workers/worker_fleet`. Only what has changed is told, and at once:
a request that waits in a worker for its model goes on some milliseconds after the parent has seen it ready.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace

from control_plane.core.model import ModelState
from control_plane.fleet.domain.fleet import Copy, ModelFacts, Server
from control_plane.fleet.domain.report import FleetReport
from control_plane.fleet.ownership.reports import OthersReports
from control_plane.fleet.view.state import FleetState
from control_plane.triton.ports import Upstream
from control_plane.triton.servers import Servers
from control_plane.workers.messages import (
    CopiesSeen,
    ModelsSeen,
    Reported,
    SeenCopy,
    SeenModel,
    SeenServer,
    ServersSeen,
    ToWorker,
    UpstreamDown,
    UpstreamUp,
)

_TICK_S = 0.5
_COALESCE_S = 0.003
"""One look at a server may change several copies."""
_MODELS_AT_ONCE = 1000
"""In one message: a worker answers requests between them."""
_LOOKING_SHARE = 20
"""Looking through thousands of models takes milliseconds: no more than one part in so many of the time."""
_WORTH_TELLING = 0.1
"""Of an expected load's time: that of a fetch changes a little with each of them."""


class FleetForWorkers:
    """The parent's end of its workers' fleet: `fleet/ports.FleetWorkers`; `triton/servers.Follower` as well."""

    def __init__(self, state: FleetState, servers: Servers, reports: OthersReports) -> None:
        self._state = state
        self._reports = reports
        self._tell: Callable[[ToWorker], None] = lambda message: None
        self._upstreams: dict[str, UpstreamUp | UpstreamDown] = {}
        self._servers: dict[str, SeenServer | None] = {}
        self._copies: dict[str, CopiesSeen] = {}
        self._models: dict[str, SeenModel] = {}
        self._made_of: dict[str, tuple[object, ...]] = {}
        self._lives: dict[tuple[str, str], tuple[Copy, int]] = {}
        self._numbers = itertools.count()
        self._models_from_s = 0.0
        for name in servers.members:
            self._upstreams[name] = UpstreamDown("Triton is starting", name)
        servers.follow(self)

    def begin(self, tell: Callable[[ToWorker], None]) -> None:
        """`tell` all workers from now on."""
        self._tell = tell

    async def run(self) -> None:
        """Tell what changes until cancelled."""
        while True:
            await self._state.wait_for_change(_TICK_S)
            await asyncio.sleep(_COALESCE_S)
            self.tell_changes(of_models=self._state.now_s() >= self._models_from_s)
            self._reports.expire()

    def all_known(self) -> list[ToWorker]:
        """What a worker that begins has to be told: all that the others have been."""
        self._tell_servers()
        return [ServersSeen(dict(self._servers)), *self._upstreams.values(), *_in_parts(self._models), *self._copies.values()]

    def reported(self, report: FleetReport) -> None:
        """By a worker."""
        self._reports.take(report)

    def relay(self, report: FleetReport) -> None:
        """What one process has told is part of every worker's picture, so that all choose by the same."""
        self._tell(Reported(replace(report, wanted=(), died=())))

    def tell_changes(self, *, of_models: bool = True) -> None:
        """Now, so that what comes after finds it known."""
        self._tell_servers()
        if of_models:
            began_s = self._state.now_s()
            self._tell_models()
            self._models_from_s = began_s + min(_TICK_S, _LOOKING_SHARE * (self._state.now_s() - began_s))
        self._tell_copies()

    # `triton/servers.Follower`

    def up(self, upstream: Upstream, server: str) -> None:
        self._tell_upstream(UpstreamUp(upstream.endpoints, server))

    def down(self, reason: str, server: str) -> None:
        self._tell_upstream(UpstreamDown(reason, server))

    def left(self, server: str) -> None:
        self._upstreams.pop(server, None)
        self._tell_servers()

    def _tell_upstream(self, message: UpstreamUp | UpstreamDown) -> None:
        self._tell_servers()
        self._upstreams[message.server] = message
        self._tell(message)

    def _tell_servers(self) -> None:
        now = {name: _seen_server(server) for name, server in self._state.fleet.servers.items()}
        gone = self._servers.keys() - now.keys()
        changes = {name: seen for name, seen in now.items() if seen != self._servers.get(name)}
        if changes or gone:
            self._servers = dict(now)
            for name in gone:
                self._copies.pop(name, None)
            self._tell(ServersSeen({**changes, **dict.fromkeys(gone)}))

    def _tell_copies(self) -> None:
        lives = dict[tuple[str, str], tuple[Copy, int]]()
        for server in self._state.fleet.servers.values():
            lives |= {(server.name, name): self._life_of(server, copy) for name, copy in server.copies.items()}
            seen = CopiesSeen(server.name, {name: _seen_copy(copy, lives[server.name, name][1]) for name, copy in server.copies.items()})
            if seen != self._copies.get(server.name):
                self._copies[server.name] = seen
                self._tell(seen)
        self._lives = lives

    def _life_of(self, server: Server, copy: Copy) -> tuple[Copy, int]:
        known = self._lives.get((server.name, copy.model))
        return known if known is not None and known[0] is copy else (copy, next(self._numbers))

    def _tell_models(self) -> None:
        state = self._state
        changes: dict[str, SeenModel | None] = dict.fromkeys(self._models.keys() - state.fleet.models.keys())
        for name in changes:
            del self._models[name], self._made_of[name]
        for name, facts in state.fleet.models.items():
            made_of = self._made_of_now(facts)
            if made_of != self._made_of.get(name):
                self._made_of[name] = made_of
                seen, before = self._seen_model(facts), self._models.get(name)
                if before is None or _differs(seen, before):
                    changes[name] = self._models[name] = seen
        for message in _in_parts(changes):
            self._tell(message)

    def _made_of_now(self, facts: ModelFacts) -> tuple[object, ...]:
        """Cheaper to compare than what is told."""
        name, state = facts.name, self._state
        known = state.measurements.known.get(name)
        return (facts.spec, facts.tier, facts.resident_bytes, facts.load_s, known, state.is_withdrawn(name), state.has_sequences(name))

    def _seen_model(self, facts: ModelFacts) -> SeenModel:
        name, state = facts.name, self._state
        known = state.measurements.of(name)
        return SeenModel(
            facts.spec,
            facts.tier,
            facts.resident_bytes,
            facts.load_s,
            facts.service_s,
            has_sequences=state.has_sequences(name),
            is_withdrawn=state.is_withdrawn(name),
            failures=known.failures,
            quarantined_until_s=known.quarantined_until_s,
            why=known.why,
        )


def _in_parts(models: Mapping[str, SeenModel | None]) -> list[ModelsSeen]:
    found = list(models.items())
    return [ModelsSeen(dict(found[first : first + _MODELS_AT_ONCE])) for first in range(0, len(found), _MODELS_AT_ONCE)]


def _seen_server(server: Server) -> SeenServer:
    return SeenServer(
        server.budget_bytes,
        server.pool,
        dict(server.labels),
        is_leaving=server.is_leaving,
        parallel=server.parallel,
        serves_while_loading=server.serves_while_loading,
    )


def _seen_copy(copy: Copy, life: int) -> SeenCopy:
    ready_s = copy.ready_s if copy.state is ModelState.LOADING else None
    return SeenCopy(life, copy.state, copy.bytes, copy.since_s, ready_s, copy.is_step)


def _differs(seen: SeenModel, before: SeenModel) -> bool:
    """By more than what changes all the time."""
    if abs(seen.load_s - before.load_s) > _WORTH_TELLING * before.load_s:
        return True
    return replace(seen, load_s=before.load_s, service_s=before.service_s) != before
