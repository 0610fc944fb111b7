"""Model router: finds a ready replica for each request of a fleet, or has one loaded while the request waits, up to its deadline.

`fleet/domain/routing` and `fleet/domain/placement` decide; `fleet/loading/replica_loader` loads, or asks the leader to.
`fleet/routing/dispatch` calls this for every request, `fleet/reconciler` every tick.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import nullcontext

from control_plane.admission.waiting_room import Place
from control_plane.core.errors import Conflict, ModelLoadFailed, ModelNotFound, NotSupported, Overloaded
from control_plane.core.infer_call import InferCall
from control_plane.core.model import ModelState
from control_plane.fleet.domain.counts import LOADING
from control_plane.fleet.domain.event import FleetEventKind
from control_plane.fleet.domain.fleet import NEVER_S, ModelFacts, Replica
from control_plane.fleet.domain.leadership.report import Wanted
from control_plane.fleet.domain.placement.placement import Obstacle, Refusal, place
from control_plane.fleet.domain.routing.routing import Choice, choose
from control_plane.fleet.loading.dead_stubs import DeadStubDetector
from control_plane.fleet.loading.replica_loader import ReplicaLoader
from control_plane.fleet.routing.load_requests import LoadRequests
from control_plane.fleet.routing.workloads import ANY, RoutingHint
from control_plane.fleet.view.reservations import Reservation, waiting_at
from control_plane.fleet.view.sequences import Sequences
from control_plane.fleet.view.state import FleetState
from control_plane.triton.copy_silence import UNSEEN_S, CopySilence
from control_plane.triton.silence_watch import LONG_S, TellSuspect

_RESTART_S = 2.0
"""Time in which a Triton that has ended is usually back."""
_MIN_RETRY_S = 1.0
"""Shortest `Retry-After` that a client is given."""
_MIN_WAIT_S = 0.001
"""Shortest wait: less may be less than the clock's next tick, and then nothing has changed."""
_LEADER_BEGINS_S = 1.0
"""Time within which the leader begins a load that it was asked for; until then this process does not refuse a
request by its own view."""

_PROBED = Choice(None, math.inf, needs_placement=False)
"""Choice of a request that goes to a replica in doubt."""


class ModelRouter:
    """Model router of one process: gives each request a slot at a ready replica, and has missing models
    loaded."""

    def __init__(
        self,
        state: FleetState,
        loads: ReplicaLoader,
        *,
        wait_s: float,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """A request waits for `wait_s` at most."""
        self.state = state
        self._wait_s = wait_s
        self._draw = draw
        self.loads = loads
        self._sequences = Sequences(state.now_s)
        self._dead_stubs = DeadStubDetector(state, loads.repairs)
        self._silences = defaultdict[str, defaultdict[str, CopySilence]](lambda: defaultdict(CopySilence))
        """Server -> model -> its silence; of models that have been served there."""
        self.suspect: TellSuspect | None = None
        """Told of a server and a model that seems to hang there; None where nothing could be done about it."""
        self._given_up: dict[tuple[str, str], Replica] = {}
        """(server, model) -> the replica there that has answered nothing since a request was given up."""
        self._requests = LoadRequests(state, loads)

    async def acquire(
        self, call: InferCall, *, deadline_s: float, hint: RoutingHint = ANY, enter_room: Callable[[float], Place] | None = None
    ) -> Reservation:
        """Acquire a slot at a ready replica of the request's model; wait for one, and have it loaded, if
        there is none. Who waits `enter_room`s with the seconds that the load takes, and raises what that raises.

        If the caller is cancelled while it waits, the load goes on for others.

        Raises: ModelNotFound: no repository has the model, or an administrator has suspended it. Overloaded:
        the model will not be ready by `deadline_s` (on the event loop's clock); it is loaded all the same, if
        it can be. UpstreamUnavailable: the replica that holds the state of the request's sequence is gone.
        """
        fleet, model, now_s = self.state.fleet, call.model_name, self.state.now_s()
        facts = fleet.models.get(model)
        if facts is None or self.state.specs.is_suspended(model):
            raise ModelNotFound(f"Request for unknown model: '{model}' is not found")
        if facts.spec.sharded:
            raise not_whole(model)
        self.state.count_requests(model)
        # A sequence id means nothing to a model without sequences.
        in_sequence = bool(call.sequence_id) and self.state.specs.has_sequences(model)
        if in_sequence and (held := self._sequences.holder_of(call)) is not None:
            return self._reserve_held(call, *held)
        reservation, choice = self._take(call, facts, hint, in_sequence=in_sequence)
        if reservation is not None:
            return reservation
        self._refuse_if_failed(facts, hint.pool)
        place = None if enter_room is None else enter_room(max(_MIN_RETRY_S, self.loads.expected_s(facts)))
        deadline_s = min(deadline_s, now_s + self._wait_s)
        try:
            while True:
                # Counted while it waits, so that later requests see this server as busier.
                with nullcontext() if choice.server is None else waiting_at(fleet.servers[choice.server], facts):
                    await self._wait(facts, deadline_s, hint.pool, since_s=now_s)
                reservation, choice = self._take(call, facts, hint, in_sequence=in_sequence)
                if reservation is not None:
                    self.state.counts.waits.add(self.state.now_s() - now_s)
                    return reservation
                self._refuse_if_failed(facts, hint.pool)
        finally:
            if place is not None:
                place.leave()

    def ready_in_s(self, model: str) -> float:
        """Return the seconds until the model's load should be over, or that of the last of its parts; 0 where it is ready, or is not
        being loaded."""
        return max(self._own_ready_in_s(each) for each in self.state.specs.parts_of(model) or (model,))

    def _own_ready_in_s(self, model: str) -> float:
        facts = self.state.fleet.models.get(model)
        is_awaited = facts is not None and not self.state.fleet.ready_replicas(model) and self.loads.is_loading(model)
        return self.loads.expected_s(facts) if facts is not None and is_awaited else 0.0

    def _take(self, call: InferCall, facts: ModelFacts, hint: RoutingHint, *, in_sequence: bool) -> tuple[Reservation | None, Choice]:
        """Reserve a slot at the replica that should answer first, if there is one that is ready; return with it the choice."""
        if hint.may_probe and (probing := self._probe(facts.name)) is not None:
            return probing, _PROBED
        choice = self._choose(facts, hint)
        # No await between choosing and reserving, so that the chosen replica cannot go in between. No
        # reservation: its load is not over.
        reservation = None if choice.server is None else self.state.reserve(facts.name, choice.server)
        if reservation is not None and in_sequence:
            self._sequences.bind(call, reservation.server.name, reservation.replica)
        return reservation, choice

    def _choose(self, facts: ModelFacts, hint: RoutingHint) -> Choice:
        """Choose a replica, among those too whose loads begin now, since a request may be served sooner
        there."""
        choice = self._choice(facts, hint)
        if choice.needs_placement and self._requests.one_more(facts, must_beat_s=choice.expected_s, pool=hint.pool):
            choice = self._choice(facts, hint)
        if choice.is_probe and choice.server is not None:
            # Noted at once, so that the next request is not sent as a probe as well.
            self.state.ejection.probe(choice.server)
        return choice

    def _choice(self, facts: ModelFacts, hint: RoutingHint) -> Choice:
        return choose(
            self.state.fleet,
            facts.name,
            self.state.now_s(),
            self._draw(),
            pool=hint.pool,
            affinity_key=hint.affinity_key,
            avoid=hint.avoid | self.state.doubts.avoided(facts.name),
        )

    def _probe(self, model: str) -> Reservation | None:
        """Acquire a slot at a replica in doubt, if one is due for a probe."""
        doubts = self.state.doubts
        server = doubts.due_probe(model, self.state.now_s())
        reservation = None if server is None else self.state.reserve(model, server)
        if reservation is not None:
            doubts.begin_probe(reservation)
        return reservation

    def _reserve_held(self, call: InferCall, server: str, replica: Replica) -> Reservation:
        """Acquire a slot at the replica that holds the sequence's state, if it is still the same replica."""
        reservation = self.state.reserve(call.model_name, server)
        # The replica that held the state is gone, even if another one of the model is there by now.
        if reservation is None or reservation.replica is not replica:
            if reservation is not None:
                reservation.release(answered=False)
            raise self._sequences.lost(call)
        self._sequences.bind(call, server, replica)
        return reservation

    def answered(self, call: InferCall, reservation: Reservation, *, is_alive: bool = True) -> None:
        """Note that a request has been answered, by a replica that `is_alive`; its reservation has been released."""
        if call.sequence_id:
            self._sequences.done(call)
        self.state.ejection.answered(reservation)
        if is_alive:
            self.state.doubts.answered(reservation, self.state.now_s())
        if self.suspect is not None:
            silence = self._silences[reservation.server.name][reservation.replica.model]
            silence.answered(reservation.started_s, self.state.now_s())

    def gave_up(self, reservation: Reservation) -> None:
        """Note that a request was not answered in time, or that its caller has left."""
        server, replica = reservation.server.name, reservation.replica
        goes_on = self.state.streams.go_on(server, replica.model)
        if not goes_on:
            self.state.ejection.gave_up(reservation)
        self.state.doubts.gave_up(reservation)
        if self.suspect is None or not reservation.is_current or replica.state is not ModelState.READY:
            return
        oldest_s = next((sent_s for key, sent_s in replica.waiting.items() if key != id(reservation)), math.inf)
        silence = self._silences[server][replica.model]
        if goes_on:
            silence.goes_on(self.state.now_s())
        since_s = silence.gave_up(reservation.started_s, self.state.now_s(), oldest_s=oldest_s)
        self._given_up[server, replica.model] = replica
        if since_s is not None:
            self.suspect(server, replica.model, since_s)

    def look_for_overdue(self) -> None:
        """Have requests taken back from replicas that answer nobody while others do, suspect those that hang, and forget
        sequences that lie idle: to be called several times a second, while this process runs on time."""
        self._sequences.forget_idle()
        self.state.recall_overdue()
        now_s, servers = self.state.now_s(), self.state.fleet.servers
        for name, model in self.state.streams.going_on():
            if (at := servers.get(name)) is not None and (replica := at.replicas.get(model)) is not None:
                self.state.doubts.goes_on(replica, now_s)
        for left in self._silences.keys() - servers.keys():
            del self._silences[left]
        for (name, model), replica in list(self._given_up.items()):
            server, oldest_s = servers.get(name), next(iter(replica.waiting.values()), math.inf)
            if server is None or server.replicas.get(model) is not replica or replica.abandoned_s == math.inf:
                del self._given_up[name, model]  # it has answered since, or was loaded anew
            elif self.state.streams.go_on(name, model):
                self._silences[name][model].goes_on(now_s)
            elif self.suspect is not None and (since_s := self._silences[name][model].overdue(now_s, oldest_s=oldest_s)) is not None:
                self.suspect(name, model, since_s)

    def awaited(self) -> Iterator[tuple[str, str, float]]:
        """Yield the server, the model and the time it was sent of each replica's oldest request, if that has
        waited for long."""
        long_ago_s = self.state.now_s() - LONG_S
        for server in self.state.fleet.servers.values():
            for replica in server.replicas.values():
                if (oldest_s := next(iter(replica.waiting.values()), math.inf)) <= long_ago_s:
                    yield server.name, replica.model, oldest_s

    def given_up(self) -> Iterator[tuple[str, str, float]]:
        """Yield the same of each replica's oldest request that its caller gave up and that it has lately been sent."""
        now_s = self.state.now_s()
        for server in self.state.fleet.servers.values():
            for replica in server.replicas.values():
                if now_s - UNSEEN_S < replica.abandoned_s <= now_s - LONG_S:
                    yield server.name, replica.model, replica.abandoned_s

    def lost(self, reservation: Reservation, *, is_gone: bool) -> None:
        """Note that a connection failed: others are preferred until the server has been looked at. `is_gone`:
        it could not even be opened."""
        self.state.ejection.disconnected(reservation)
        # A replica that holds sequences is kept: their state would be lost with it, though the server may be
        # out of reach for a moment only.
        if is_gone and not reservation.replica.sequences:
            self.state.drop(reservation.server, reservation.replica)

    def note_dead_stub(self, reservation: Reservation, model: str) -> None:
        """Note a server's answer that a model's stub has died: the reservation's model, a step of it, or a
        model that it calls."""
        called = reservation.server.replicas.get(model)
        is_probe = self.state.doubts.doubt(reservation, self.state.now_s(), at_once=True)
        if reservation.is_current:
            # For a step the ensemble is loaded anew, as steps are loaded with it; a model that is called
            # (BLS) is loaded anew by itself.
            at = reservation.replica if called is None or called.is_step else called
            self._dead_stubs.count_dead_answer(reservation.server, at, is_probe=is_probe)

    def met_dead_stub(self, server: str, model: str) -> None:
        """Note a server's answer to one request for a model that its stub, or a step's, has died."""
        at = self.state.fleet.servers.get(server)
        if at is not None and (replica := at.replicas.get(model)) is not None:
            self._dead_stubs.count_dead_answer(at, replica)

    def stub_died(self, server: str, model: str, how: str) -> None:
        """Note that a stub of a loaded model has died on an embedded server."""
        if (at := self.state.fleet.servers.get(server)) is not None:
            self._dead_stubs.note_death(at, model, how)

    def explain_death(self, server: str, model: str) -> None:
        """Note that a stub of the model died on the server under a query of death."""
        if (at := self.state.fleet.servers.get(server)) is not None:
            self._dead_stubs.explain_death(at, model)

    def ready(self) -> set[str]:
        """Return the models with a ready replica."""
        servers = self.state.fleet.servers.values()
        return {
            replica.model for server in servers if server.is_up for replica in server.replicas.values() if replica.state is ModelState.READY
        }

    def note_missing(self, reservation: Reservation) -> None:
        """Drop a replica that the server says it does not have."""
        if reservation.is_current:
            self.state.drop(reservation.server, reservation.replica)
            reason = "the server says that it does not have it"
            self.state.events.record(FleetEventKind.LOST, model=reservation.replica.model, server=reservation.server.name, reason=reason)

    async def ensure_loaded(self, model: str, *, deadline_s: float, waits_for_room: bool = True) -> None:
        """Return when the model has a ready replica, however long its load takes.

        Raises:
            ModelLoadFailed: its load has failed.
            Overloaded: it will not be ready in time.
            Conflict: an administrator has suspended it meanwhile.
        """
        # At start nobody waits for room: the gateway serves what fits.
        hopeless = set[Obstacle]() if waits_for_room else {Obstacle.IN_USE, Obstacle.CHURN}
        facts = self.state.fleet.models[model]
        while not self.state.fleet.ready_replicas(model):
            if self.state.specs.is_suspended(model):
                raise Conflict(f"model '{model}' has been unloaded by an administrator meanwhile")
            if (reason := self.state.measurements.why_quarantined(model)) is not None:
                raise ModelLoadFailed(reason)
            placement = None if self.loads.is_loading(model) else place(self.state.fleet, model, self.state.now_s())
            is_too_large = isinstance(placement, Refusal) and placement.obstacle is Obstacle.TOO_LARGE and not self.loads.is_cold(model)
            if isinstance(placement, Refusal) and (is_too_large or placement.obstacle in hopeless):
                raise Overloaded(f"model {placement.text}", retry_after_s=placement.retry_after_s)
            await self._wait(facts, deadline_s)

    def request_replica(self, wanted: Wanted) -> None:
        """Decide on another process's request as if it waited here, unless it has been met meanwhile."""
        facts = self.state.fleet.models.get(wanted.model)
        if facts is None or self.state.specs.is_suspended(facts.name) or len(self.state.fleet.ready_replicas(facts.name)) > wanted.ready:
            return
        # Decided anew with this process's view, which includes what the other one sees.
        choice = self._choice(facts, RoutingHint(wanted.pool))
        if choice.server is not None and choice.needs_placement:
            self._requests.one_more(facts, must_beat_s=choice.expected_s, pool=wanted.pool)
        elif choice.server is None and not self.loads.is_loading(facts.name):
            self._requests.begin(facts, wanted.pool)

    def repair(self, server: str, model: str) -> None:
        """Take over another process's verdict that the stub of a replica has died."""
        at = self.state.fleet.servers[server]
        replica = at.replicas.get(model)
        if replica is not None and replica.state is ModelState.READY:
            self._dead_stubs.trust_report(at, replica)

    # Waiting

    async def _wait(self, facts: ModelFacts, deadline_s: float, pool: str | None = None, *, since_s: float = NEVER_S) -> None:
        """Wait until the view has changed, for a request that came at `since_s`. Raises Overloaded: there is
        no time for that."""
        now_s = self.state.now_s()
        refusal = None if self.loads.is_loading(facts.name) else self._requests.begin(facts, pool)
        left_s = deadline_s - now_s
        expected_s = self.loads.expected_s(facts) if refusal is None else self._retry_s(refusal)
        # The leader sees more than this process, so it is given a moment to load the model in spite of this
        # refusal.
        leader_has_s = since_s + _LEADER_BEGINS_S - now_s
        if refusal is not None and leader_has_s > 0 and self.loads.ask_leader(facts, refusal, pool=pool):
            expected_s = min(expected_s, leader_has_s, left_s)
        if left_s <= 0 or expected_s > left_s:
            self.state.counts.refused[LOADING if refusal is None else refusal.obstacle.value] += 1
            raise Overloaded(self._why_not(facts, refusal, expected_s), retry_after_s=max(expected_s, _MIN_RETRY_S))
        # While a load is under way only its end matters; after a refusal it may be worth asking again sooner.
        timeout_s = left_s if refusal is None else min(left_s, max(expected_s, _MIN_WAIT_S))
        await self.state.wait_for_change(timeout_s, for_room=refusal is not None)

    def _refuse_if_failed(self, facts: ModelFacts, pool: str | None) -> None:
        """Refuse a request at once if the model's last load has failed and no replica is ready, instead of
        letting it wait for the next try.

        The next try begins all the same when it is due, and later requests find the model. Raises Overloaded.
        """
        reason = self.state.measurements.why_failed(facts.name)
        if reason is None or self.state.fleet.ready_replicas(facts.name):
            return
        refusal = None if self.loads.is_loading(facts.name) else self._requests.begin_unless_in_vain(facts, pool)
        self.state.counts.refused[(Obstacle.QUARANTINED if refusal is None else refusal.obstacle).value] += 1
        again_s = max(_MIN_RETRY_S, self.loads.expected_s(facts) if refusal is None else refusal.retry_after_s)
        what = f"'{facts.name}' failed to load and is being tried again" if refusal is None else refusal.text
        raise Overloaded(f"model {what}: {reason}; try again in {again_s:.1f} s", retry_after_s=again_s)

    def _retry_s(self, refusal: Refusal) -> float:
        """Seconds after which another try may succeed. That no server is up usually passes sooner than the
        refusal says."""
        return min(refusal.retry_after_s, _RESTART_S) if refusal.obstacle is Obstacle.NO_SERVER else refusal.retry_after_s

    def _why_not(self, facts: ModelFacts, refusal: Refusal | None, expected_s: float) -> str:
        """The message of a refusal."""
        if refusal is None:
            return f"model '{facts.name}' is being loaded, which is expected to take {expected_s:.1f} s; try again then"
        return f"model {refusal.text}; try again in {max(_MIN_RETRY_S, refusal.retry_after_s):.1f} s"


def not_whole(model: str) -> NotSupported:
    """The error of a call that needs a server that has a sharded model as a whole."""
    return NotSupported(
        f"model '{model}' is sharded, so no server has it as a whole: it answers ModelInfer, POST infer and "
        "/v1/embeddings, without sequences, classes, streams and shared memory"
    )
