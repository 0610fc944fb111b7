"""Where each request of a fleet goes: to a copy of its model, which it waits for if there is none, up to its deadline.

Decisions are `fleet/domain/routing` and `fleet/domain/placement`; what they want loaded `fleet/loading/copy_loads`
loads, or has the fleet's owner load.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Mapping

from control_plane.core.errors import Conflict, ModelLoadFailed, ModelNotFound, Overloaded
from control_plane.core.infer_call import InferCall
from control_plane.core.model import ModelState
from control_plane.fleet.domain.counts import LOADING
from control_plane.fleet.domain.event import FleetEventKind
from control_plane.fleet.domain.fleet import NEVER_S, Copy, Fleet, ModelFacts
from control_plane.fleet.domain.outliers import Outliers
from control_plane.fleet.domain.placement import LIMITS, Obstacle, Refusal, place
from control_plane.fleet.domain.report import Wanted
from control_plane.fleet.domain.routing import Choice, choose
from control_plane.fleet.loading.copy_loads import AskOwner, CopyLoads, Files, Plans, TellOwner
from control_plane.fleet.loading.dead_stubs import Revivals
from control_plane.fleet.routing.workloads import ANY, Aim
from control_plane.fleet.view.claims import Claim, waiting_at
from control_plane.fleet.view.sequences import Sequences
from control_plane.fleet.view.state import FleetState

_RESTART_S = 2.0
"""A Triton that has ended is back in about that."""
_LEAST_RETRY_S = 1.0
_LEAST_WAIT_S = 0.001
"""Less may be less than the clock's next tick, and nothing has changed then."""
_OWNER_BEGINS_S = 1.0
"""The fleet's owner has begun a load that it was asked for in that; before, what this process would refuse is not refused."""
_HANGS_S, _HANGS_TIMES = 1.0, 10.0
"""What takes so many times as long as expected, and so long at least, and nobody else got an answer meanwhile: the server hangs."""


class Residency:
    """Gives requests of one process a place at a loaded copy, and has missing models loaded."""

    def __init__(
        self,
        state: FleetState,
        plans: Mapping[str, Plans],
        *,
        wait_s: float,
        files: Files | None = None,
        ask_owner: AskOwner = lambda model, pool: False,
        tell_owner: TellOwner = lambda server, model: False,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """A request waits for `wait_s` at most. `files`, `ask_owner` and `tell_owner` as `CopyLoads` has them."""
        self._state = state
        self._wait_s = wait_s
        self._draw = draw
        self.loads = CopyLoads(state, plans, files=files, ask_owner=ask_owner, tell_owner=tell_owner)
        self._sequences = Sequences(state.now_s)
        self._outliers = Outliers()
        self._revivals = Revivals(state, self.loads)
        self._answered_s: dict[str, float] = {}
        """By server, when it last answered anything."""
        self._no_room: dict[str, tuple[float, Refusal]] = {}
        """By model on trial for which there was no free room just now: until when that is not asked again."""
        self._out: frozenset[str] = frozenset()
        """Servers that are ejected, as was last told."""
        self._no_copy: dict[str, tuple[float, float]] = {}
        """By model for which another copy would have been no use just now: until when that is not asked again, and what a request would
        have to take until then for it to be some."""

    @property
    def fleet(self) -> Fleet:
        """Which it decides by."""
        return self._state.fleet

    async def claim(self, call: InferCall, *, deadline_s: float, aim: Aim = ANY) -> Claim:
        """A place at a copy of the request's model, when there is one.

        Raises:
            ModelNotFound: no repository has it, or an administrator has unloaded it. Overloaded: it will not be there by the loop's
                time `deadline_s`; it is loaded all the same, if it can be.
        """
        fleet, model, now_s = self._state.fleet, call.model_name, self._state.now_s()
        facts = fleet.models.get(model)
        if facts is None or self._state.is_withdrawn(model):
            raise ModelNotFound(f"Request for unknown model: '{model}' is not found")
        self._state.used(model)
        in_sequence = bool(call.sequence_id) and self._state.has_sequences(model)
        if in_sequence and (held := self._sequences.held_at(call)) is not None:
            return self._claim_held(call, *held)
        deadline_s, has_waited = min(deadline_s, now_s + self._wait_s), False
        while True:
            choice = self._choose(facts, aim)
            claim = None if choice.server is None else self._state.claim(model, choice.server)
            if claim is not None:
                if in_sequence:
                    self._sequences.hold(call, claim.server.name, claim.copy)
                if has_waited:
                    self._state.counts.waits.add(self._state.now_s() - now_s)
                return claim
            has_waited = True
            self._refuse_failed(facts, aim.pool)
            if choice.server is None:
                await self._wait(facts, deadline_s, aim.pool, since_s=now_s)
            else:
                with waiting_at(fleet.servers[choice.server], facts):
                    await self._wait(facts, deadline_s, aim.pool, since_s=now_s)

    def _choose(self, facts: ModelFacts, aim: Aim) -> Choice:
        """Also among copies whose loads begin now, since a request may be served sooner there."""
        choice = self._choice(facts, aim)
        if choice.asks_to_place and self._consider(facts, sooner_than_s=choice.expected_s, pool=aim.pool):
            choice = self._choice(facts, aim)
        if choice.is_probe and choice.server is not None:
            server = self._state.fleet.servers[choice.server]
            server.probe_from_s = self._outliers.tried(choice.server, self._state.now_s())
        return choice

    def _choice(self, facts: ModelFacts, aim: Aim) -> Choice:
        return choose(self._state.fleet, facts.name, self._state.now_s(), self._draw(), pool=aim.pool, likeness=aim.likeness)

    def _claim_held(self, call: InferCall, server: str, copy: Copy) -> Claim:
        claim = self._state.claim(call.model_name, server)
        if claim is None or claim.copy is not copy:
            if claim is not None:
                claim.release(answered=False)
            raise self._sequences.lost(call)
        self._sequences.hold(call, server, copy)
        return claim

    def answered(self, call: InferCall, claim: Claim) -> None:
        """A request that had a claim, which is released, has been answered."""
        if call.sequence_id:
            self._sequences.done(call)
        server, now_s = claim.server.name, self._state.now_s()
        self._answered_s[server] = now_s
        if claim.took_alone_s is not None:
            self._outliers.answered(server, claim.took_alone_s, expected_s=claim.facts.service_s, now_s=now_s)
        else:
            self._outliers.served(server, now_s)

    def failed(self, claim: Claim) -> None:
        """The server did not answer. What was lost with a Triton's life says nothing of the next one."""
        if self._is_there(claim):
            self._outliers.failed(claim.server.name, self._state.now_s())

    def gave_up(self, claim: Claim) -> None:
        """Nobody waits for its answer any more: a server that hangs is one that should have answered, and has answered nobody since."""
        waited_s = self._state.now_s() - claim.started_s
        has_answered = self._answered_s.get(claim.server.name, NEVER_S) >= claim.started_s
        if not has_answered and waited_s >= max(_HANGS_S, _HANGS_TIMES * claim.expected_s):
            self.failed(claim)

    def lost(self, claim: Claim, *, is_gone: bool) -> None:
        """Its connection failed: until somebody has looked again others are better. `is_gone`: there was none to be had."""
        self.failed(claim)
        server, copy = claim.server, claim.copy
        server.is_ejected, server.probe_from_s = True, math.inf
        if is_gone and self._is_there(claim) and not copy.sequences:
            self._state.fleet.drop_copy(server, copy.model)
            self._state.changed()

    def has_died(self, claim: Claim, model: str) -> None:
        """The server says that the process of that model has died: of the claim's, of a step of it, or of one that it calls."""
        called = claim.server.copies.get(model)
        if self._is_there(claim):
            self._revivals.died(claim.server, claim.copy if called is None or called.is_step else called)

    def _is_there(self, claim: Claim) -> bool:
        """Whether what it was sent to is what is there now."""
        return claim.server.copies.get(claim.copy.model) is claim.copy

    def judge_servers(self) -> None:
        """Eject those that are much slower than others of their pool or do not answer, and take back those that do well again."""
        servers, now_s = self._state.fleet.servers, self._state.now_s()
        self._outliers.keep({name for name, server in servers.items() if server.is_up})
        pools = defaultdict[str, list[str]](list)
        for name, server in servers.items():
            if server.is_up:
                pools[server.pool].append(name)
        out = {name: probe_s for pool in pools.values() for name, probe_s in self._outliers.judge(pool, now_s).items()}
        self._state.ejected_here = frozenset(out)
        ejected = set(out).union(*self._state.ejected_elsewhere.values())
        if all(name in ejected for pool in pools.values() for name in pool):
            ejected = set(out)  # each process leaves some, but not all of them the same
        for name, server in servers.items():
            server.is_ejected = name in ejected
            server.probe_from_s = out.get(name, math.inf)
        self._tell_ejected(frozenset(name for name in ejected if name in servers and servers[name].is_up))

    def _tell_ejected(self, ejected: frozenset[str]) -> None:
        """What has changed; one that went down is no longer ejected, nor readmitted."""
        for name in sorted(ejected - self._out):
            is_own = name in self._state.ejected_here
            why = self._outliers.why(name) if is_own else "another process has seen it answer too slowly or not at all"
            self._state.events.tell(FleetEventKind.EJECTED, server=name, reason=why)
        for name in sorted(self._out - ejected):
            if name in self._state.fleet.servers and self._state.fleet.servers[name].is_up:
                self._state.events.tell(FleetEventKind.READMITTED, server=name)
        self._out = ejected

    def forget(self, server: str) -> None:
        """It has left; another may come by its name."""
        self._answered_s.pop(server, None)
        self.loads.forget(server)

    def ready(self) -> set[str]:
        """Models with a copy that is ready."""
        servers = self._state.fleet.servers.values()
        return {copy.model for server in servers if server.is_up for copy in server.copies.values() if copy.state is ModelState.READY}

    def is_missing(self, claim: Claim) -> None:
        """The server says that it does not have what was there."""
        if self._is_there(claim):
            self.loads.drop(claim.server, claim.copy, FleetEventKind.LOST, "the server says that it does not have it")

    async def bring(self, model: str, *, deadline_s: float, waits_for_room: bool = True) -> None:
        """Return when there is a copy, however long it takes. Raises ModelLoadFailed; Overloaded: it will not be there in time;
        Conflict: an administrator has unloaded it."""
        hopeless = set[Obstacle]() if waits_for_room else {Obstacle.IN_USE, Obstacle.CHURN}
        facts = self._state.fleet.models[model]
        while not self._state.fleet.ready_copies(model):
            if self._state.is_withdrawn(model):
                raise Conflict(f"model '{model}' has been unloaded by an administrator meanwhile")
            if (reason := self.loads.why_quarantined(model)) is not None:
                raise ModelLoadFailed(reason)
            placement = None if self.loads.is_loading(model) else place(self._state.fleet, model, self._state.now_s())
            is_too_large = isinstance(placement, Refusal) and placement.obstacle is Obstacle.TOO_LARGE and not self.loads.is_cold(model)
            if isinstance(placement, Refusal) and (is_too_large or placement.obstacle in hopeless):
                raise Overloaded(f"model {placement.text}", retry_after_s=placement.retry_after_s)
            await self._wait(facts, deadline_s)

    def want(self, wanted: Wanted) -> None:
        """Another process waits for it: decide as if its request were ours, unless its wish has come true meanwhile."""
        facts = self._state.fleet.models.get(wanted.model)
        if facts is None or self._state.is_withdrawn(facts.name) or self._state.fleet.ready_copies(facts.name) > wanted.ready:
            return
        choice = self._choice(facts, Aim(wanted.pool))
        if choice.server is not None and choice.asks_to_place:
            self._consider(facts, sooner_than_s=choice.expected_s, pool=wanted.pool)
        elif choice.server is None and not self.loads.is_loading(facts.name):
            self._refusal(facts, wanted.pool)

    def revive(self, server: str, model: str) -> None:
        """Another process says that the process of that copy has died."""
        at = self._state.fleet.servers[server]
        copy = at.copies.get(model)
        if copy is not None and copy.state is ModelState.READY:
            self._revivals.told(at, copy)

    # Waiting

    async def _wait(self, facts: ModelFacts, deadline_s: float, pool: str | None = None, *, since_s: float = NEVER_S) -> None:
        """Until something has changed, for who waits `since_s`. Raises Overloaded: there is no time for that."""
        now_s = self._state.now_s()
        refusal = None if self.loads.is_loading(facts.name) else self._refusal(facts, pool)
        left_s = deadline_s - now_s
        expected_s = self.loads.expected_s(facts) if refusal is None else self._retry_s(refusal)
        owner_has_s = since_s + _OWNER_BEGINS_S - now_s
        if refusal is not None and owner_has_s > 0 and self.loads.is_left_to_owner(facts, refusal, pool=pool):
            expected_s = min(expected_s, owner_has_s, left_s)
        if left_s <= 0 or expected_s > left_s:
            self._state.counts.refused[LOADING if refusal is None else refusal.obstacle.value] += 1
            raise Overloaded(self._why_not(facts, refusal, expected_s), retry_after_s=max(expected_s, _LEAST_RETRY_S))
        timeout_s = left_s if refusal is None else min(left_s, max(expected_s, _LEAST_WAIT_S))
        await self._state.wait_for_change(timeout_s, for_room=refusal is not None)

    def _refuse_failed(self, facts: ModelFacts, pool: str | None) -> None:
        """Tell who comes for a model whose last load has failed, and which is nowhere, at once.

        The next try begins all the same when it is time for it, and who comes after it finds the model. Raises Overloaded.
        """
        reason = self.loads.why_failed(facts.name)
        if reason is None or self._state.fleet.ready_copies(facts.name):
            return
        refusal = None if self.loads.is_loading(facts.name) else self._try_again(facts, pool)
        self._state.counts.refused[(Obstacle.QUARANTINED if refusal is None else refusal.obstacle).value] += 1
        again_s = max(_LEAST_RETRY_S, self.loads.expected_s(facts) if refusal is None else refusal.retry_after_s)
        what = f"'{facts.name}' failed to load and is being tried again" if refusal is None else refusal.text
        raise Overloaded(f"model {what}: {reason}; try again in {again_s:.1f} s", retry_after_s=again_s)

    def _try_again(self, facts: ModelFacts, pool: str | None) -> Refusal | None:
        """As `_refusal`; of one that many ask for in vain the servers are not looked through for each of them."""
        until_s, refusal = self._no_room.get(facts.name, (NEVER_S, None))
        if refusal is None or self._state.now_s() >= until_s:
            refusal = self._refusal(facts, pool)
            if refusal is not None and refusal.obstacle is Obstacle.ON_TRIAL:
                self._no_room[facts.name] = self._state.now_s() + LIMITS.look_again_loads * facts.load_s, refusal
            else:
                self._no_room.pop(facts.name, None)
        return refusal

    def _refusal(self, facts: ModelFacts, pool: str | None = None) -> Refusal | None:
        """Why it is not being loaded; None: it is now."""
        refusal = self.loads.bring(facts, pool=pool)
        if refusal is not None and facts.refused_since_s == NEVER_S:
            facts.refused_since_s = self._state.now_s()
        return refusal

    def _retry_s(self, refusal: Refusal) -> float:
        return min(refusal.retry_after_s, _RESTART_S) if refusal.obstacle is Obstacle.NO_SERVER else refusal.retry_after_s

    def _why_not(self, facts: ModelFacts, refusal: Refusal | None, expected_s: float) -> str:
        if refusal is None:
            return f"model '{facts.name}' is being loaded, which is expected to take {expected_s:.1f} s; try again then"
        return f"model {refusal.text}; try again in {refusal.retry_after_s:.1f} s"

    # Loading

    def _consider(self, facts: ModelFacts, *, sooner_than_s: float, pool: str | None = None) -> bool:
        """Load one more copy if a request would be served sooner there; beside one that is being loaded, too, since a burst cannot wait."""
        now_s = self._state.now_s()
        before_s, unless_longer_than_s = self._no_copy.get(facts.name, (now_s, math.inf))
        if now_s < before_s and sooner_than_s <= unless_longer_than_s:
            return False
        refusal = self.loads.bring(facts, sooner_than_s=sooner_than_s, pool=pool)
        if refusal is not None:
            self._no_copy[facts.name] = now_s + LIMITS.look_again_loads * facts.load_s, refusal.sooner_than_s
        return refusal is None
