"""Mirrors another process's view of the fleet: updates this process's view from its snapshots.

A worker process mirrors its parent's view (`workers/fleet_follower`) instead of reading Triton's indexes. In-flight slots, sequences
and outliers remain its own: the requests that it routes are more current than a snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from control_plane.core.model import ModelState
from control_plane.fleet.domain.fleet import NEVER_S, ModelFacts, Replica, Server
from control_plane.fleet.domain.memory import DesiredState, Measured
from control_plane.fleet.domain.snapshot import ModelSnapshot, ReplicaSnapshot, ServerSnapshot
from control_plane.fleet.view.state import FleetState
from control_plane.models.domain.description import DescribedModel
from control_plane.triton.ports import Upstream
from control_plane.triton.servers import Servers


class FleetMirror:
    """Mirror of another process's view of the fleet; the changes of which servers are up reach it as a
    `triton/server_state.ServerObserver`."""

    def __init__(self, state: FleetState, servers: Servers) -> None:
        self._state = state
        self._servers = servers
        state.specs.described = self._described = dict[str, DescribedModel]()
        self._replicas: dict[str, Mapping[str, ReplicaSnapshot]] = {}
        """Server -> the last snapshots of what is on it."""
        self._lives: dict[str, dict[str, int]] = {}
        """Server -> model -> the life of the replica that is in the view."""
        servers.follow(self)

    # `triton/server_state.ServerObserver`

    def up(self, upstream: Upstream, server: str) -> None:
        """Count the server as up at once: there is no index to be read first, its replicas come as
        snapshots."""
        self._state.fleet.servers[server].is_up = True

    def down(self, reason: str, server: str) -> None:
        """Forget the server's snapshots; later ones describe its next life."""
        self._replicas.pop(server, None)
        self._lives.pop(server, None)

    def silence_changed(self, is_silent: bool, server: str) -> None:
        """Nothing to do: this process's view hears of it by itself."""

    def left(self, server: str) -> None:
        """Nothing to do: `down` was called before."""

    # Snapshots

    def apply_server(self, name: str, seen: ServerSnapshot | None) -> None:
        """Add or change a server; None: it has left."""
        if seen is None:
            self._servers.members[name].down("it has left the fleet")
            self._servers.remove(name)
            return
        if name not in self._servers.members:
            self._servers.add(name, is_needed=False)
            self._state.join(Server(name, seen.budget_bytes, is_up=False))
        self._state.change(name, pool=seen.pool, labels=seen.labels, budget_bytes=seen.budget_bytes)
        self._state.fleet.servers[name].is_draining = seen.is_draining

    def apply_models(self, models: Mapping[str, ModelSnapshot | None]) -> None:
        """Add or change models; None: it is gone."""
        others = {name: wish for name, wish in self._state.specs.wishes.items() if name not in models}
        suspended = {name: DesiredState(is_suspended=True) for name, seen in models.items() if seen is not None and seen.is_suspended}
        self._state.apply_wishes({**others, **suspended})
        for name, seen in models.items():
            if seen is None:
                self._state.fleet.models.pop(name, None)
                self._described.pop(name, None)
            else:
                self._apply_model(name, seen)

    def _apply_model(self, name: str, seen: ModelSnapshot) -> None:
        models = self._state.fleet.models
        self._described[name] = DescribedModel(seen.spec, 0, has_sequences=seen.has_sequences)
        facts = models.setdefault(name, ModelFacts(seen.spec, seen.resident_bytes, seen.load_s, seen.service_s))
        facts.spec, facts.tier, facts.resident_bytes, facts.load_s = seen.spec, seen.tier, seen.resident_bytes, seen.load_s
        known = Measured(0, failures=seen.failures, quarantined_until_s=seen.quarantined_until_s, why=seen.why)
        self._state.measurements.recall(name, known)

    def apply_replicas(self, server: str, replicas: Mapping[str, ReplicaSnapshot]) -> None:
        """Take over all replicas on a server, by model."""
        self._replicas[server] = replicas
        self._show(server, replicas)

    def apply_again(self) -> Iterator[None]:
        """Apply the last snapshots of replicas once more, those of a server in each step.

        A request that got "unknown model" has dropped the replica here. It is gone, and the next snapshots
        say so, or it was loaded again in the meantime: then this puts it back.
        """
        for name in list(self._replicas):
            if name in self._replicas:  # else it has gone down meanwhile
                self._show(name, self._replicas[name])
            yield

    def _show(self, name_of_server: str, replicas: Mapping[str, ReplicaSnapshot]) -> None:
        fleet, server = self._state.fleet, self._state.fleet.servers.get(name_of_server)
        if server is None:
            return
        lives = self._lives.setdefault(server.name, {})
        for name in server.replicas.keys() - replicas.keys():
            fleet.drop_replica(server, name)
            lives.pop(name, None)
        for name, seen in replicas.items():
            replica = server.replicas.get(name)
            # A replica that was loaded anew gets a new object: slots and times of the old one must not count
            # for it.
            if replica is None or lives.get(name) != seen.life:
                replica = Replica(name, seen.state, 0, seen.since_s, last_used_s=self._state.now_s())
                fleet.put_replica(server, replica)
                lives[name] = seen.life
            replica.state, replica.bytes, replica.since_s, replica.is_step = seen.state, seen.bytes, seen.since_s, seen.is_step
            replica.ready_s = NEVER_S if seen.ready_s is None else seen.ready_s
            if seen.is_dead and not replica.is_dead:
                self._state.note_dead(server, replica, has_hung=seen.has_hung)
            elif not seen.is_dead:
                replica.revive(self._state.now_s())
            replica.hangs = seen.hangs
        loading = [replica.ready_s for replica in server.replicas.values() if replica.state is ModelState.LOADING]
        server.loads_until_s = max(loading, default=NEVER_S)
