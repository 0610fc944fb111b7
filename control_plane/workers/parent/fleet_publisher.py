"""Replicates the parent's view of the fleet to its worker processes, and takes in their load reports.

The parent's side of a fleet with `--workers`; the worker's side is `workers/fleet_follower`. Workers choose
servers, the parent loads models. Only changes are sent, and at once, so that a request that waits in a worker
for its model goes on a few milliseconds after the parent has seen it ready.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace

from control_plane.core.errors import UpstreamUnavailable
from control_plane.core.model import ModelState, ModelVersion
from control_plane.fleet.domain.fleet import ModelFacts, Replica, Server
from control_plane.fleet.domain.leadership.report import LoadReport
from control_plane.fleet.domain.snapshot import ModelSnapshot, ReplicaSnapshot, ServerSnapshot
from control_plane.fleet.leadership.reports import ReportCollector
from control_plane.fleet.view.state import FleetState
from control_plane.triton.ports import Upstream
from control_plane.triton.servers import Servers
from control_plane.workers.messages import ToWorker
from control_plane.workers.messages.between_workers import LoadReported
from control_plane.workers.messages.to_workers import (
    ModelsChanged,
    ReplicasChanged,
    ServersChanged,
    UpstreamDown,
    UpstreamSilence,
    UpstreamUp,
)

_TICK_S = 0.5
_COALESCE_S = 0.003
"""Time for which changes are collected: one poll of a server may change several replicas."""
_REST, _LONGEST_REST_S = 2.0, 0.1
"""Time between two comparisons, in times that the last one took, and at most: of thousands of replicas it takes milliseconds, and loads
change them all the time."""
_MODELS_AT_ONCE = 1000
"""Models in one message: a worker answers requests between two messages."""
_LOOKING_SHARE = 20
"""Comparing thousands of models takes milliseconds: at most one part in so many of the time goes to that."""
_MIN_RELATIVE_CHANGE = 0.1
"""Relative change of a model's expected load time that is sent; smaller ones come with each fetch of any
model."""


class FleetPublisher:
    """Publisher of the fleet's view to workers: `fleet/ports.FleetWorkers`, and
    `triton/server_state.ServerObserver` as well.

    Keeps what workers have been told, to send differences only, and all of it to a worker that starts later.
    """

    def __init__(self, state: FleetState, servers: Servers, reports: ReportCollector) -> None:
        self._state = state
        self._reports = reports
        self._members = servers.members
        self._tell: Callable[[ToWorker], None] = lambda message: None
        self._upstreams: dict[str, UpstreamUp | UpstreamDown] = {}
        self._servers: dict[str, ServerSnapshot | None] = {}
        self._replicas: dict[str, ReplicasChanged] = {}
        self._models: dict[str, ModelSnapshot] = {}
        self._inputs: dict[str, tuple[object, ...]] = {}
        # A number for each replica's life. It keeps the replica object, too: an `id()` could be given to
        # another one later.
        self._lives: dict[tuple[str, str], tuple[Replica, int]] = {}
        self._numbers = itertools.count()
        self._models_from_s = 0.0
        for name in servers.members:
            self._upstreams[name] = UpstreamDown("Triton is starting", name)
        servers.follow(self)

    def begin(self, tell: Callable[[ToWorker], None]) -> None:
        """Send messages to all workers through `tell` from now on."""
        self._tell = tell

    async def run(self) -> None:
        """Send changes until cancelled."""
        pause_s = _COALESCE_S
        while True:
            await self._state.wait_for_change(_TICK_S)
            await asyncio.sleep(pause_s)
            began_s = self._state.now_s()
            self.publish_changes(of_models=began_s >= self._models_from_s)
            pause_s = min(max(_COALESCE_S, _REST * (self._state.now_s() - began_s)), _LONGEST_REST_S)
            self._reports.expire()

    def snapshot(self) -> list[ToWorker]:
        """The messages that bring a starting worker up to date with the others."""
        self._tell_servers()
        # Servers come first: a worker can place models and replicas only at servers that it knows.
        silent = [UpstreamSilence(is_silent=True, server=name) for name, server in self._state.fleet.servers.items() if server.is_silent]
        upstreams = [*self._upstreams.values(), *silent]
        return [ServersChanged(dict(self._servers)), *upstreams, *_in_parts(self._models), *self._replicas.values()]

    async def index(self, server: str) -> list[ModelVersion]:
        """Return a server's index, for a worker that may not read it. Raises UpstreamUnavailable, UpstreamFailed."""
        if server not in self._members:
            raise UpstreamUnavailable(f"server '{server}' has left the fleet")
        return await self._members[server].ask(lambda upstream: upstream.control.index())

    def reported(self, report: LoadReport) -> None:
        """Take in a worker's load report."""
        self._reports.apply(report)

    def relay(self, report: LoadReport) -> None:
        """Forward a process's load report to all workers, so that all route by the same load."""
        self._tell(LoadReported(replace(report, wanted=(), died=())))

    def publish_changes(self, *, of_models: bool = True) -> None:
        """Send all changes now, before any message that presumes them."""
        self._tell_servers()
        if of_models:
            began_s = self._state.now_s()
            self._tell_models()
            self._models_from_s = began_s + min(_TICK_S, _LOOKING_SHARE * (self._state.now_s() - began_s))
        self._tell_replicas()

    # `triton/server_state.ServerObserver`

    def up(self, upstream: Upstream, server: str) -> None:
        self._tell_upstream(UpstreamUp(upstream.endpoints, server))

    def down(self, reason: str, server: str) -> None:
        self._tell_upstream(UpstreamDown(reason, server))

    def silence_changed(self, is_silent: bool, server: str) -> None:
        self._tell(UpstreamSilence(is_silent, server))

    def left(self, server: str) -> None:
        self._upstreams.pop(server, None)
        self._tell_servers()

    def _tell_upstream(self, message: UpstreamUp | UpstreamDown) -> None:
        # First, since a worker can do nothing with the state of a server that it does not know.
        self._tell_servers()
        self._upstreams[message.server] = message
        self._tell(message)

    def _tell_servers(self) -> None:
        now = {name: _snapshot_of_server(server) for name, server in self._state.fleet.servers.items()}
        gone = self._servers.keys() - now.keys()
        changes = {name: seen for name, seen in now.items() if seen != self._servers.get(name)}
        if changes or gone:
            self._servers = dict(now)
            for name in gone:
                self._replicas.pop(name, None)
            self._tell(ServersChanged({**changes, **dict.fromkeys(gone)}))

    def _tell_replicas(self) -> None:
        lives = dict[tuple[str, str], tuple[Replica, int]]()
        for server in self._state.fleet.servers.values():
            lives |= {(server.name, name): self._life_of(server, replica) for name, replica in server.replicas.items()}
            replicas = {name: _snapshot_of_replica(replica, lives[server.name, name][1]) for name, replica in server.replicas.items()}
            seen = ReplicasChanged(server.name, replicas)
            if seen != self._replicas.get(server.name):
                self._replicas[server.name] = seen
                self._tell(seen)
        self._lives = lives

    def _life_of(self, server: Server, replica: Replica) -> tuple[Replica, int]:
        known = self._lives.get((server.name, replica.model))
        return known if known is not None and known[0] is replica else (replica, next(self._numbers))

    def _tell_models(self) -> None:
        state = self._state
        changes: dict[str, ModelSnapshot | None] = dict.fromkeys(self._models.keys() - state.fleet.models.keys())
        for name in changes:
            del self._models[name], self._inputs[name]
        # Cheap test first, then the message itself is compared: most changes of measurements are too small to
        # be sent.
        for name, facts in state.fleet.models.items():
            made_of = self._inputs_of(facts)
            if made_of != self._inputs.get(name):
                self._inputs[name] = made_of
                seen, before = self._snapshot_of_model(facts), self._models.get(name)
                if before is None or _differs(seen, before):
                    changes[name] = self._models[name] = seen
        for message in _in_parts(changes):
            self._tell(message)

    def _inputs_of(self, facts: ModelFacts) -> tuple[object, ...]:
        """The objects that a `ModelSnapshot` is made of: cheaper to compare than building it for each of
        thousands of models."""
        name, state = facts.name, self._state
        known = state.measurements.known.get(name)
        return (
            facts.spec,
            facts.tier,
            facts.resident_bytes,
            facts.load_s,
            known,
            state.specs.is_suspended(name),
            state.specs.has_sequences(name),
        )

    def _snapshot_of_model(self, facts: ModelFacts) -> ModelSnapshot:
        name, state = facts.name, self._state
        known = state.measurements.record_of(name)
        return ModelSnapshot(
            facts.spec,
            facts.tier,
            facts.resident_bytes,
            facts.load_s,
            facts.service_s,
            has_sequences=state.specs.has_sequences(name),
            is_suspended=state.specs.is_suspended(name),
            failures=known.failures,
            quarantined_until_s=known.quarantined_until_s,
            why=known.why,
        )


def _in_parts(models: Mapping[str, ModelSnapshot | None]) -> list[ModelsChanged]:
    found = list(models.items())
    return [ModelsChanged(dict(found[first : first + _MODELS_AT_ONCE])) for first in range(0, len(found), _MODELS_AT_ONCE)]


def _snapshot_of_server(server: Server) -> ServerSnapshot:
    return ServerSnapshot(
        server.budget_bytes,
        server.pool,
        dict(server.labels),
        is_draining=server.is_draining,
    )


def _snapshot_of_replica(replica: Replica, life: int) -> ReplicaSnapshot:
    ready_s = replica.ready_s if replica.state is ModelState.LOADING else None
    return ReplicaSnapshot(
        life,
        replica.state,
        replica.bytes,
        replica.since_s,
        ready_s,
        replica.is_step,
        is_dead=replica.is_dead,
        has_hung=replica.has_hung,
        hangs=replica.hangs,
    )


def _differs(seen: ModelSnapshot, before: ModelSnapshot) -> bool:
    """Whether a change is worth a message; service times change with each request, and workers measure their
    own."""
    if abs(seen.load_s - before.load_s) > _MIN_RELATIVE_CHANGE * before.load_s:
        return True
    return replace(seen, load_s=before.load_s, service_s=before.service_s) != before
