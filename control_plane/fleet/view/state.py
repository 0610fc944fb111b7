"""A process's view of its fleet, updated as requests come and go and as Triton's indexes are read.

It holds the `fleet/domain/fleet.Fleet` that policies read, as an informer cache holds objects: `observe` updates it from a server,
and tasks can wait for a change of the view. All changes are reported here, and nothing outside `fleet/view` writes to the `Fleet`.
Everything here runs on the event loop.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from control_plane.concurrency.broadcast import Broadcast
from control_plane.core.model import ModelState, ModelVersion
from control_plane.fleet.domain.counts import FleetCounts
from control_plane.fleet.domain.event import FleetEventKind
from control_plane.fleet.domain.fleet import Fleet, Replica, Server
from control_plane.fleet.domain.memory import DesiredState
from control_plane.fleet.view.events import FleetEvents
from control_plane.fleet.view.health.doubts import ReplicaDoubts
from control_plane.fleet.view.health.ejection import OutlierEjection
from control_plane.fleet.view.health.outages import Outages
from control_plane.fleet.view.health.recalls import Recalls
from control_plane.fleet.view.idle_waiters import IdleWaiters
from control_plane.fleet.view.models.measurements import FIRST_LOAD_S, PROCESS_BYTES, Measurements
from control_plane.fleet.view.models.specs import ModelSpecs
from control_plane.fleet.view.reservations import Reservation
from control_plane.fleet.view.seen_index import SeenIndex
from control_plane.triton.open_streams import OpenStreams
from control_plane.triton.ports import Upstream
from control_plane.triton.servers import Servers

NO_BUDGET = 2**62
"""More memory than any server has."""


def _states_on(server: Server) -> dict[str, tuple[Replica, ModelState, bool]]:
    return {name: (replica, replica.state, replica.hangs) for name, replica in server.replicas.items()}


class FleetState:
    """In-memory view of the fleet's servers, replicas and models (an informer cache), with the requests in
    flight at each replica. It hears as a `triton/server_state.ServerObserver` which servers are up."""

    def __init__(
        self,
        servers: Servers,
        *,
        budget_bytes: int,
        now_s: Callable[[], float] = time.monotonic,
        today_s: Callable[[], float] = time.time,
        counts: FleetCounts | None = None,
        logs: bool = False,
        load_timeout_s: float = 300.0,
    ) -> None:
        """`now_s` is the event loop's time, `today_s` seconds since 1970. With `logs` this process logs what
        happens to servers. A load that takes longer than `load_timeout_s` hangs."""
        self._load_timeout_s = load_timeout_s
        self.now_s = now_s
        self.fleet = Fleet()
        self.counts = counts or FleetCounts()
        self.events = FleetEvents(self.counts, today_s=today_s, logs=logs)
        for name in servers.members:
            self.fleet.add_server(Server(name, budget_bytes, is_up=False))
        self.measurements = Measurements(self.fleet, now_s=now_s, today_s=today_s)
        self.specs = ModelSpecs(self.fleet, self.measurements)
        self.ejection = OutlierEjection(self.fleet, self.events, now_s=now_s)
        self._outages = Outages(self.events, self.counts, now_s=now_s)
        self.recalls = Recalls(self.fleet)
        self.streams = OpenStreams(now_s)
        self.idle_waiters = IdleWaiters()
        self.doubts = ReplicaDoubts(self.fleet)
        self.awaiting_fingerprint: set[tuple[str, str]] = set()
        """(server, model): replicas that count as LOADING even if Triton says READY. Until the fingerprint of
        what is loaded has been published, another server's fingerprint would stand for their answers in the
        response cache."""
        self._seen: dict[str, SeenIndex] = {}
        """Server -> its index as it was last seen."""
        self.uses: Counter[str] = Counter()
        """Model -> requests that `fleet/leadership/reports` has not reported yet."""
        self._servers = servers
        # Two: those that wait for a load are woken only by changes of replicas, not by the end of each request
        # (`released`).
        self._change = Broadcast()
        self._room = Broadcast()
        self.room_changes = 0
        """How often there may have been room since the start."""
        servers.follow(self)

    # Servers

    def join(self, server: Server) -> None:
        """Add a server to the fleet. It counts as down until it is said to be up."""
        self.fleet.add_server(server)

    def change(self, name: str, *, pool: str, labels: Mapping[str, str], budget_bytes: int) -> None:
        """Take over what is said of a server now. Models that are there stay until something else is
        wanted."""
        server = self.fleet.servers[name]
        server.pool, server.labels, server.budget_bytes = pool, labels, budget_bytes
        self.fleet.add_server(server)  # again: the fleet indexes servers by pool
        self.changed()

    def drain(self, server: Server) -> None:
        """Give the server no new requests and no models any more: it is to leave the fleet."""
        server.is_draining = True
        self.changed()

    def up(self, upstream: Upstream, server: str) -> None:
        """Note that a server answers. It counts as up only after its index has been read (`observe`): until
        then its replicas are unknown."""
        self._outages.end(server)

    def down(self, reason: str, server: str) -> None:
        """Drop a server's replicas and the state of sequences in them: what is loaded when it comes back is a new replica."""
        at = self.fleet.servers[server]
        if self._servers.members[server].is_lost:
            self._outages.begin(at, reason)
        at.is_up, at.work_s, at.silent_from_s = False, 0.0, None
        at.failed_s, at.failed_only_here = {}, set()
        for model in list(at.replicas):
            self.fleet.drop_replica(at, model)
        self.changed()

    def silence_changed(self, is_silent: bool, server: str) -> None:
        """Note that a server that is up says nothing, or answers again. Its replicas and the sequences in them
        stay: the same process may go on in a moment."""
        at, now_s = self.fleet.servers[server], self.now_s()
        if is_silent:
            at.silent_from_s = now_s
            self.events.record(FleetEventKind.SILENT, server=server, reason="it says nothing; requests go to other servers")
        else:
            silent_s = 0.0 if at.silent_from_s is None else now_s - at.silent_from_s
            at.silent_from_s, at.heard_s = None, now_s
            self.events.record(FleetEventKind.ANSWERING, server=server, seconds=silent_s)
        self.changed()

    def left(self, server: str) -> None:
        """Forget a server that has left the fleet."""
        self._outages.forget(server)
        self.ejection.forget(server)
        self.recalls.forget(server)
        self.fleet.remove_server(server)
        self._seen.pop(server, None)
        self.changed()

    def live(self) -> set[str]:
        """Servers whose index can be read."""
        return self.fleet.servers.keys() & self._servers.live.keys()

    # Replicas

    def observe(self, server: str, index: Iterable[ModelVersion]) -> None:
        """Bring the view in line with a server's repository index, in which a replica that is only announced is not yet: it stays."""
        fleet, at, now_s = self.fleet, self.fleet.servers.get(server), self.now_s()
        # The server left or went down while the index was on its way: it describes what is gone.
        if at is None or not self._servers.members[server].is_up:
            return
        was_up, at.is_up = at.is_up, True
        if (seen := self._seen.get(server)) is None or seen.index is not index:
            seen = self._seen[server] = SeenIndex(index)
        found, before = seen.states, _states_on(at)
        # Ensembles first: whether a model is a step depends on what else is loaded here.
        steps = {step for name in found for step in self.specs.steps_of(name)}
        for name in [name for name, replica in at.replicas.items() if name not in found and not replica.is_announced]:
            fleet.drop_replica(at, name)
        for name, state in found.items():
            replica = self._observe_replica(at, name, state, now_s)
            replica.is_step = name in steps
            replica.bytes = self.bytes_of(server, name)
        # The index is read often while requests wait: waking all of them each time, for nothing, would cost too much.
        if not was_up or _states_on(at) != before:
            self.changed()

    def _observe_replica(self, at: Server, name: str, state: ModelState, now_s: float) -> Replica:
        """Bring a replica in line with its state in the server's index, and return it."""
        # Triton is ahead of us: the replica serves only once its fingerprint is published.
        if (is_own := (at.name, name) in self.awaiting_fingerprint) and state is ModelState.READY:
            state = ModelState.LOADING
        replica = at.replicas.get(name)
        if replica is None or replica.is_announced:
            # An announced load is in the index now, and keeps the time by which it was expected.
            ready_s = replica.ready_s if replica is not None else now_s + self._load_s(name)
            replica = Replica(name, state, 0, now_s, ready_s, last_used_s=now_s)
            self.fleet.put_replica(at, replica)
        if replica.state is not state:
            replica.state, replica.since_s = state, now_s
            if state is ModelState.READY:
                replica.revive(now_s)
        replica.hangs = state is ModelState.LOADING and not is_own and now_s - replica.since_s > self._load_timeout_s
        return replica

    def announce(self, server: Server, replica: Replica) -> None:
        """Add a planned replica, so that routing and placement take it into account. Its memory counts only from its load on."""
        server.loads_until_s = max(server.loads_until_s, replica.ready_s)
        self.fleet.put_replica(server, replica)

    def mark_loading(self, server: Server, replica: Replica, *, after_s: float = 0.0, has_hung: bool = False) -> None:
        """Count a dead replica as LOADING that is to be loaded anew `after_s` from now, although Triton goes on
        listing it as READY, until it is taken out of `awaiting_fingerprint`."""
        self.awaiting_fingerprint.add((server.name, replica.model))
        replica.state, replica.ready_s = ModelState.LOADING, self.now_s() + after_s + self._load_s(replica.model)
        self.note_dead(server, replica, has_hung=has_hung)
        self.changed()

    def note_dead(self, server: Server, replica: Replica, *, has_hung: bool = False) -> None:
        """Recall the requests at a replica whose stub has died, or was ended as it `has_hung`, and end the streams; Triton would answer
        each request with an error, a second after the one before it."""
        if not replica.is_dead:
            replica.is_dead, replica.died_s, replica.has_hung = True, self.now_s(), has_hung
            self.doubts.died(server, replica, self.now_s())
        self.recalls.died(server.name, replica)
        self.streams.died(server.name, replica.model)

    def drop(self, server: Server, replica: Replica) -> None:
        """Drop a replica that is gone, unless another one of its model is in its place by now."""
        if server.replicas.get(replica.model) is replica:
            self.fleet.drop_replica(server, replica.model)
            self.changed()

    def reschedule_loads(self, server: Server) -> None:
        """Recompute when the loads that wait on the server will have ended, now that one has ended sooner or later than expected."""
        until_s, models = self.now_s(), self.fleet.models
        loading = [
            each
            for each in server.replicas.values()
            if each.state is ModelState.LOADING and not (each.is_step or each.hangs) and each.model in models
        ]
        # Loads run one after the other, in the order in which they were announced.
        for replica in sorted(loading, key=lambda replica: replica.ready_s):
            until_s += models[replica.model].load_s
            replica.ready_s = until_s
        server.loads_until_s = until_s

    def listed(self) -> set[str]:
        """All models that any server could load."""
        return set[str]().union(*(seen.names for seen in self._seen.values()))

    def is_empty(self, server: str) -> bool:
        """Whether no model is on the server, apart from announced ones."""
        return all(replica.is_announced for replica in self.fleet.servers[server].replicas.values())

    def bytes_of(self, server: str, model: str) -> int:
        """Memory of a model on a server, in bytes; 0 for the steps of an ensemble, whose memory counts with
        the ensemble."""
        replica = self.fleet.servers[server].replicas.get(model)
        if replica is not None and replica.is_step:
            return 0
        facts = self.fleet.models.get(model)
        return PROCESS_BYTES if facts is None else facts.resident_bytes

    def _load_s(self, model: str) -> float:
        facts = self.fleet.models.get(model)
        return FIRST_LOAD_S if facts is None else facts.load_s

    # Models

    def keep_replicas(self, wanted: Mapping[str, int]) -> None:
        """Have at least so many replicas of these models, beside what their specs say."""
        if self.fleet.kept != wanted:
            self.fleet.kept = dict(wanted)
            self.changed()

    def apply_wishes(self, wishes: Mapping[str, DesiredState]) -> None:
        """Take over the desired state that administrators have set, in place of the one before."""
        self.specs.apply_wishes(wishes)
        self.changed()

    # Requests

    def reserve(self, model: str, server: str) -> Reservation | None:
        """Reserve an in-flight slot at a ready replica; None if there is no such replica or the server is
        down."""
        at = self.fleet.servers.get(server)
        replica = None if at is None else at.replicas.get(model)
        if at is None or replica is None or replica.state is not ModelState.READY or not self._servers.members[server].is_up:
            return None
        return Reservation(self, self._servers.get(server), at, replica, self.fleet.models[model])

    def count_requests(self, model: str, count: int = 1, *, is_to_be_reported: bool = True) -> None:
        """Count requests for a model. `is_to_be_reported` is False if the leader has heard of them from
        another process."""
        self.fleet.models[model].count_uses(self.now_s(), count)
        if is_to_be_reported:
            self.uses[model] += count

    def take_uses(self) -> dict[str, int]:
        """Return the requests to be reported by model, and begin to count anew."""
        uses = dict(self.uses)
        self.uses.clear()
        return uses

    def recall_overdue(self) -> None:
        """Recall requests from replicas that answer nobody, while others of their models do; these are in doubt then."""
        now_s = self.now_s()
        for reservation in self.recalls.recall_overdue(now_s, self.doubts.avoided):
            self.doubts.doubt(reservation, now_s)

    # Waiting

    def changed(self) -> None:
        """Wake everyone who waits for a change, and recall requests that another server could answer by now."""
        self.recalls.sweep()
        self._change.wake()
        self.released()

    def released(self) -> None:
        """Wake those who wait for room, but not the many who may wait for a load, as this is called at the
        end of each request."""
        self.room_changes += 1
        self._room.wake()

    async def wait_for_change(self, timeout_s: float, *, for_room: bool = False) -> None:
        """Return when the view has changed, with `for_room` also when a request has ended, and at the latest
        after `timeout_s`."""
        await (self._room if for_room else self._change).wait(timeout_s)
