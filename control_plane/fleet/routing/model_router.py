"""Model router: finds a ready replica for each request of a fleet, or has one loaded and lets the request
wait, up to its deadline.

`fleet/domain/routing` and `fleet/domain/placement` decide; `fleet/loading/replica_loader` loads what they want,
or has the leader load it. `fleet/routing/dispatch` calls this for every request, `fleet/reconciler` every
tick.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable

from control_plane.core.errors import Conflict, ModelLoadFailed, ModelNotFound, Overloaded
from control_plane.core.infer_call import InferCall
from control_plane.core.model import ModelState
from control_plane.fleet.domain.counts import LOADING
from control_plane.fleet.domain.event import FleetEventKind
from control_plane.fleet.domain.fleet import NEVER_S, Fleet, ModelFacts, Replica
from control_plane.fleet.domain.outliers import Outliers
from control_plane.fleet.domain.placement import LIMITS, Obstacle, Refusal, place
from control_plane.fleet.domain.report import Wanted
from control_plane.fleet.domain.routing import Choice, choose
from control_plane.fleet.loading.dead_stubs import DeadStubDetector
from control_plane.fleet.loading.replica_loader import ReplicaLoader
from control_plane.fleet.routing.workloads import ANY, RoutingHint
from control_plane.fleet.view.reservations import Reservation, waiting_at
from control_plane.fleet.view.sequences import Sequences
from control_plane.fleet.view.state import FleetState

_RESTART_S = 2.0
"""Time in which a Triton that has ended is usually back."""
_MIN_RETRY_S = 1.0
"""Shortest `Retry-After` that a client is given."""
_MIN_WAIT_S = 0.001
"""Shortest wait: less may be less than the clock's next tick, and then nothing has changed."""
_LEADER_BEGINS_S = 1.0
"""Time within which the leader begins a load that it was asked for; until then this process does not refuse a
request by its own view."""
_HANGS_S, _HANGS_TIMES = 1.0, 10.0
"""A server hangs if a request takes 10 times as long as expected, and at least 1 s, and the server answered
nothing else meanwhile."""


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
        self._state = state
        self._wait_s = wait_s
        self._draw = draw
        self.loads = loads
        self._sequences = Sequences(state.now_s)
        self._outliers = Outliers()
        self._revivals = DeadStubDetector(state, loads)
        self._answered_s: dict[str, float] = {}
        """Server -> when it last answered anything."""
        self._no_room: dict[str, tuple[float, Refusal]] = {}
        """Negative cache: model on trial -> (when to search for room again, the last refusal)."""
        self._out: frozenset[str] = frozenset()
        """Servers that are ejected, as last recorded in the event log."""
        self._no_further_replica: dict[str, tuple[float, float]] = {}
        """Negative cache: model -> (when to ask again for one more replica, the expected wait above which one
        would help even before that)."""

    @property
    def fleet(self) -> Fleet:
        """The view of the fleet by which this decides."""
        return self._state.fleet

    async def acquire(self, call: InferCall, *, deadline_s: float, aim: RoutingHint = ANY) -> Reservation:
        """Acquire a slot at a ready replica of the request's model; wait for one, and have it loaded, if
        there is none.

        If the caller is cancelled while it waits, the load goes on for others.

        Raises:
            ModelNotFound: no repository has the model, or an administrator has suspended it.
            Overloaded: the model will not be ready by `deadline_s` (on the event loop's clock); it is loaded all
                the same, if it can be.
            UpstreamUnavailable: the replica that holds the state of the request's sequence is gone.
        """
        fleet, model, now_s = self._state.fleet, call.model_name, self._state.now_s()
        facts = fleet.models.get(model)
        if facts is None or self._state.is_suspended(model):
            raise ModelNotFound(f"Request for unknown model: '{model}' is not found")
        self._state.count_requests(model)
        # A sequence id means nothing to a model without sequences.
        in_sequence = bool(call.sequence_id) and self._state.has_sequences(model)
        if in_sequence and (held := self._sequences.holder_of(call)) is not None:
            return self._claim_held(call, *held)
        deadline_s, has_waited = min(deadline_s, now_s + self._wait_s), False
        while True:
            choice = self._choose(facts, aim)
            # No await between choosing and claiming, so that the chosen replica cannot go in between. No
            # claim: its load is not over.
            claim = None if choice.server is None else self._state.reserve(model, choice.server)
            if claim is not None:
                if in_sequence:
                    self._sequences.bind(call, claim.server.name, claim.copy)
                if has_waited:
                    self._state.counts.waits.add(self._state.now_s() - now_s)
                return claim
            has_waited = True
            self._refuse_if_failed(facts, aim.pool)
            if choice.server is None:
                await self._wait(facts, deadline_s, aim.pool, since_s=now_s)
            else:
                # Counted while it waits, so that later requests see this server as busier.
                with waiting_at(fleet.servers[choice.server], facts):
                    await self._wait(facts, deadline_s, aim.pool, since_s=now_s)

    def _choose(self, facts: ModelFacts, aim: RoutingHint) -> Choice:
        """Choose a replica, among those too whose loads begin now, since a request may be served sooner
        there."""
        choice = self._choice(facts, aim)
        if choice.needs_placement and self._consider(facts, must_beat_s=choice.expected_s, pool=aim.pool):
            choice = self._choice(facts, aim)
        if choice.is_probe and choice.server is not None:
            server = self._state.fleet.servers[choice.server]
            # Set at once, so that the next request is not sent as a probe as well.
            server.probe_from_s = self._outliers.note_probe(choice.server, self._state.now_s())
        return choice

    def _choice(self, facts: ModelFacts, aim: RoutingHint) -> Choice:
        return choose(self._state.fleet, facts.name, self._state.now_s(), self._draw(), pool=aim.pool, affinity_key=aim.affinity_key)

    def _claim_held(self, call: InferCall, server: str, copy: Replica) -> Reservation:
        """Acquire a slot at the replica that holds the sequence's state, if it is still the same replica."""
        claim = self._state.reserve(call.model_name, server)
        # The replica that held the state is gone, even if another one of the model is there by now.
        if claim is None or claim.copy is not copy:
            if claim is not None:
                claim.release(answered=False)
            raise self._sequences.lost(call)
        self._sequences.bind(call, server, copy)
        return claim

    def answered(self, call: InferCall, claim: Reservation) -> None:
        """Note that a request has been answered; its claim has been released."""
        if call.sequence_id:
            self._sequences.done(call)
        server, now_s = claim.server.name, self._state.now_s()
        self._answered_s[server] = now_s
        if claim.unshared_service_s is not None:
            self._outliers.note_answer(server, claim.unshared_service_s, expected_s=claim.facts.service_s, now_s=now_s)
        else:
            self._outliers.note_untimed_answer(server, now_s)

    def failed(self, claim: Reservation) -> None:
        """Note that the server did not answer a request. A request lost with an earlier Triton process says
        nothing of the present one."""
        if self._is_there(claim):
            self._outliers.note_failure(claim.server.name, self._state.now_s())

    def gave_up(self, claim: Reservation) -> None:
        """Note that a caller has stopped waiting. It counts as a failure only if the server hangs: the answer
        is overdue, and nobody got one meanwhile."""
        waited_s = self._state.now_s() - claim.started_s
        has_answered = self._answered_s.get(claim.server.name, NEVER_S) >= claim.started_s
        if not has_answered and waited_s >= max(_HANGS_S, _HANGS_TIMES * claim.expected_s):
            self.failed(claim)

    def lost(self, claim: Reservation, *, is_gone: bool) -> None:
        """Note that a connection failed: others are preferred until the server has been looked at. `is_gone`:
        it could not even be opened."""
        self.failed(claim)
        server, copy = claim.server, claim.copy
        # Provisional: `judge_servers` decides at the next tick whether the server stays ejected.
        server.is_ejected, server.probe_from_s = True, math.inf
        # A replica that holds sequences is kept: their state would be lost with it, though the server may be
        # out of reach for a moment only.
        if is_gone and self._is_there(claim) and not copy.sequences:
            self._state.fleet.drop_replica(server, copy.model)
            self._state.changed()

    def has_died(self, claim: Reservation, model: str) -> None:
        """Note a server's answer that a model's stub has died: the claim's model, a step of it, or a model
        that it calls."""
        called = claim.server.copies.get(model)
        if self._is_there(claim):
            # For a step the ensemble is loaded anew, as steps are loaded with it; a model that is called
            # (BLS) is loaded anew by itself.
            self._revivals.count_dead_answer(claim.server, claim.copy if called is None or called.is_step else called)

    def _is_there(self, claim: Reservation) -> bool:
        """Whether the replica that the request was sent to is still the one in the view."""
        return claim.server.copies.get(claim.copy.model) is claim.copy

    def judge_servers(self) -> None:
        """Eject servers that do not answer or are much slower than others of their pool, and take back those
        that do well again."""
        servers, now_s = self._state.fleet.servers, self._state.now_s()
        # A server that was down starts with a clean record.
        self._outliers.retain_only({name for name, server in servers.items() if server.is_up})
        pools = defaultdict[str, list[str]](list)
        for name, server in servers.items():
            if server.is_up:
                pools[server.pool].append(name)
        out = {name: probe_s for pool in pools.values() for name, probe_s in self._outliers.judge(pool, now_s).items()}
        self._state.ejected_by_us = frozenset(out)
        # What other processes found counts as well: one process alone may have too few requests to tell.
        ejected = set(out).union(*self._state.ejected_by_others.values())
        if all(name in ejected for pool in pools.values() for name in pool):
            # Each process spares some servers, but not the same: together they could eject all.
            ejected = set(out)
        for name, server in servers.items():
            server.is_ejected = name in ejected
            # Only who ejected a server probes it; others wait for word of its recovery.
            server.probe_from_s = out.get(name, math.inf)
        self._tell_ejected(frozenset(name for name in ejected if name in servers and servers[name].is_up))

    def _tell_ejected(self, ejected: frozenset[str]) -> None:
        """Record the changes as events. A server that went down is neither ejected nor readmitted."""
        for name in sorted(ejected - self._out):
            is_own = name in self._state.ejected_by_us
            why = self._outliers.why(name) if is_own else "another process has seen it answer too slowly or not at all"
            self._state.events.record(FleetEventKind.EJECTED, server=name, reason=why)
        for name in sorted(self._out - ejected):
            if name in self._state.fleet.servers and self._state.fleet.servers[name].is_up:
                self._state.events.record(FleetEventKind.READMITTED, server=name)
        self._out = ejected

    def forget(self, server: str) -> None:
        """Forget a server that has left; another one may come by its name."""
        self._answered_s.pop(server, None)
        self.loads.forget(server)

    def ready(self) -> set[str]:
        """Return the models with a ready replica."""
        servers = self._state.fleet.servers.values()
        return {copy.model for server in servers if server.is_up for copy in server.copies.values() if copy.state is ModelState.READY}

    def is_missing(self, claim: Reservation) -> None:
        """Drop a replica that the server says it does not have."""
        if self._is_there(claim):
            self.loads.drop(claim.server, claim.copy, FleetEventKind.LOST, "the server says that it does not have it")

    async def ensure_loaded(self, model: str, *, deadline_s: float, waits_for_room: bool = True) -> None:
        """Return when the model has a ready replica, however long its load takes.

        Raises:
            ModelLoadFailed: its load has failed.
            Overloaded: it will not be ready in time.
            Conflict: an administrator has suspended it meanwhile.
        """
        # At start nobody waits for room: the gateway serves what fits.
        hopeless = set[Obstacle]() if waits_for_room else {Obstacle.IN_USE, Obstacle.CHURN}
        facts = self._state.fleet.models[model]
        while not self._state.fleet.ready_replicas(model):
            if self._state.is_suspended(model):
                raise Conflict(f"model '{model}' has been unloaded by an administrator meanwhile")
            if (reason := self._state.measurements.why_quarantined(model)) is not None:
                raise ModelLoadFailed(reason)
            placement = None if self.loads.is_loading(model) else place(self._state.fleet, model, self._state.now_s())
            is_too_large = isinstance(placement, Refusal) and placement.obstacle is Obstacle.TOO_LARGE and not self.loads.is_cold(model)
            if isinstance(placement, Refusal) and (is_too_large or placement.obstacle in hopeless):
                raise Overloaded(f"model {placement.text}", retry_after_s=placement.retry_after_s)
            await self._wait(facts, deadline_s)

    def request_replica(self, wanted: Wanted) -> None:
        """Decide on another process's request as if it waited here, unless it has been met meanwhile."""
        facts = self._state.fleet.models.get(wanted.model)
        if facts is None or self._state.is_suspended(facts.name) or self._state.fleet.ready_replicas(facts.name) > wanted.ready:
            return
        # Decided anew with this process's view, which includes what the other one sees.
        choice = self._choice(facts, RoutingHint(wanted.pool))
        if choice.server is not None and choice.needs_placement:
            self._consider(facts, must_beat_s=choice.expected_s, pool=wanted.pool)
        elif choice.server is None and not self.loads.is_loading(facts.name):
            self._refusal(facts, wanted.pool)

    def repair(self, server: str, model: str) -> None:
        """Take over another process's verdict that the stub of a replica has died."""
        at = self._state.fleet.servers[server]
        copy = at.copies.get(model)
        if copy is not None and copy.state is ModelState.READY:
            self._revivals.trust_report(at, copy)

    # Waiting

    async def _wait(self, facts: ModelFacts, deadline_s: float, pool: str | None = None, *, since_s: float = NEVER_S) -> None:
        """Wait until the view has changed, for a request that came at `since_s`. Raises Overloaded: there is
        no time for that."""
        now_s = self._state.now_s()
        refusal = None if self.loads.is_loading(facts.name) else self._refusal(facts, pool)
        left_s = deadline_s - now_s
        expected_s = self.loads.expected_s(facts) if refusal is None else self._retry_s(refusal)
        # The leader sees more than this process, so it is given a moment to load the model in spite of this
        # refusal.
        owner_has_s = since_s + _LEADER_BEGINS_S - now_s
        if refusal is not None and owner_has_s > 0 and self.loads.is_left_to_leader(facts, refusal, pool=pool):
            expected_s = min(expected_s, owner_has_s, left_s)
        if left_s <= 0 or expected_s > left_s:
            self._state.counts.refused[LOADING if refusal is None else refusal.obstacle.value] += 1
            raise Overloaded(self._why_not(facts, refusal, expected_s), retry_after_s=max(expected_s, _MIN_RETRY_S))
        # While a load is under way only its end matters; after a refusal it may be worth asking again sooner.
        timeout_s = left_s if refusal is None else min(left_s, max(expected_s, _MIN_WAIT_S))
        await self._state.wait_for_change(timeout_s, for_room=refusal is not None)

    def _refuse_if_failed(self, facts: ModelFacts, pool: str | None) -> None:
        """Refuse a request at once if the model's last load has failed and no replica is ready, instead of
        letting it wait for the next try.

        The next try begins all the same when it is due, and later requests find the model. Raises Overloaded.
        """
        reason = self._state.measurements.why_failed(facts.name)
        if reason is None or self._state.fleet.ready_replicas(facts.name):
            return
        refusal = None if self.loads.is_loading(facts.name) else self._try_again(facts, pool)
        self._state.counts.refused[(Obstacle.QUARANTINED if refusal is None else refusal.obstacle).value] += 1
        again_s = max(_MIN_RETRY_S, self.loads.expected_s(facts) if refusal is None else refusal.retry_after_s)
        what = f"'{facts.name}' failed to load and is being tried again" if refusal is None else refusal.text
        raise Overloaded(f"model {what}: {reason}; try again in {again_s:.1f} s", retry_after_s=again_s)

    def _try_again(self, facts: ModelFacts, pool: str | None) -> Refusal | None:
        """As `_refusal`, through a negative cache: while many ask in vain, the servers are not searched for
        each of them."""
        until_s, refusal = self._no_room.get(facts.name, (NEVER_S, None))
        if refusal is None or self._state.now_s() >= until_s:
            refusal = self._refusal(facts, pool)
            if refusal is not None and refusal.obstacle is Obstacle.ON_TRIAL:
                self._no_room[facts.name] = self._state.now_s() + LIMITS.negative_cache_loads * facts.load_s, refusal
            else:
                self._no_room.pop(facts.name, None)
        return refusal

    def _refusal(self, facts: ModelFacts, pool: str | None = None) -> Refusal | None:
        """Begin a load; returns why it cannot begin, or None if it has."""
        refusal = self.loads.load_replica(facts, pool=pool)
        if refusal is not None and facts.refused_since_s == NEVER_S:
            facts.refused_since_s = self._state.now_s()
        return refusal

    def _retry_s(self, refusal: Refusal) -> float:
        """Seconds after which another try may succeed. That no server is up usually passes sooner than the
        refusal says."""
        return min(refusal.retry_after_s, _RESTART_S) if refusal.obstacle is Obstacle.NO_SERVER else refusal.retry_after_s

    def _why_not(self, facts: ModelFacts, refusal: Refusal | None, expected_s: float) -> str:
        """The message of a refusal."""
        if refusal is None:
            return f"model '{facts.name}' is being loaded, which is expected to take {expected_s:.1f} s; try again then"
        return f"model {refusal.text}; try again in {refusal.retry_after_s:.1f} s"

    # Loading

    def _consider(self, facts: ModelFacts, *, must_beat_s: float, pool: str | None = None) -> bool:
        """Load one more replica if a request would be served sooner there; also beside one that is being
        loaded, since a burst cannot wait."""
        now_s = self._state.now_s()
        # The negative cache holds until its time is over, unless this request would wait longer than a new
        # replica costs.
        before_s, unless_longer_than_s = self._no_further_replica.get(facts.name, (now_s, math.inf))
        if now_s < before_s and must_beat_s <= unless_longer_than_s:
            return False
        refusal = self.loads.load_replica(facts, must_beat_s=must_beat_s, pool=pool)
        if refusal is not None:
            self._no_further_replica[facts.name] = now_s + LIMITS.negative_cache_loads * facts.load_s, refusal.must_beat_s
        return refusal is None
