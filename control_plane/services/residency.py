"""Where each request of a fleet goes: to a copy of its model, which it waits for if there is none, up to its deadline.

Decisions are `policy/routing` and `policy/placement`; what they want loaded `services/copy_loads` loads, or has the fleet's owner load.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping

from control_plane.domain.errors import ModelLoadFailed, ModelNotFound, Overloaded
from control_plane.domain.fleet import NEVER_S, Copy, ModelFacts
from control_plane.domain.fleet_event import FleetEventKind
from control_plane.domain.inference import InferCall
from control_plane.domain.model import ModelState
from control_plane.policy.outliers import Outliers
from control_plane.policy.placement import Obstacle, Placement, Refusal, place
from control_plane.policy.routing import choose
from control_plane.services.copy_loads import CopyLoads, Plans
from control_plane.services.fleet_state import Claim, FleetState
from control_plane.services.sequences import Sequences

_LOOK_AGAIN_S = 0.02
"""A look at all servers takes up to a few milliseconds, and a busy model would ask for one with every request."""
_RESTART_S = 2.0
"""A Triton that has ended is back in about that."""
_LEAST_RETRY_S = 1.0


class Residency:
    """Of one process."""

    def __init__(
        self,
        state: FleetState,
        plans: Mapping[str, Plans],
        *,
        wait_s: float,
        ask_owner: Callable[[str], bool] = lambda model: False,
        today_s: Callable[[], float] = time.time,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """A request waits for `wait_s` at most. `ask_owner` as `CopyLoads` has it. `today_s` is seconds since 1970."""
        self._state = state
        self._wait_s = wait_s
        self._draw = draw
        self.loads = CopyLoads(state, plans, ask_owner=ask_owner, today_s=today_s)
        self._sequences = Sequences(state.now_s)
        self._outliers = Outliers()
        self._no_copy_before_s: dict[str, float] = {}
        """Of busy models for which another copy would have been no use just now."""

    async def claim(self, call: InferCall, *, deadline_s: float) -> Claim:
        """A place at a copy of the request's model, when there is one.

        Raises:
            ModelNotFound: no repository has it, or an administrator has unloaded it. Overloaded: it will not be there by the loop's
                time `deadline_s`; it is loaded all the same, if it can be.
        """
        fleet, model, now_s = self._state.fleet, call.model_name, self._state.now_s()
        facts = fleet.models.get(model)
        if facts is None or model in self.loads.withdrawn:
            raise ModelNotFound(f"Request for unknown model: '{model}' is not found")
        self._state.used(model)
        in_sequence = bool(call.sequence_id) and self._state.has_sequences(model)
        if in_sequence and (held := self._sequences.held_at(call)) is not None:
            return self._claim_held(call, *held)
        deadline_s = min(deadline_s, now_s + self._wait_s)
        while True:
            choice = choose(fleet, model, self._state.now_s(), self._draw())
            if choice.is_probe and choice.server is not None:
                fleet.servers[choice.server].probe_from_s = self._outliers.tried(choice.server, self._state.now_s())
            if choice.asks_to_place:
                self._consider(facts, sooner_than_s=choice.expected_s)
            claim = None if choice.server is None else self._state.claim(model, choice.server)
            if claim is not None:
                if in_sequence:
                    self._sequences.hold(call, claim.server.name, claim.copy)
                return claim
            await self._wait(facts, deadline_s)

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
        if claim.took_alone_s is not None:
            expected_s, now_s = claim.facts.service_s, self._state.now_s()
            self._outliers.answered(claim.server.name, claim.took_alone_s, expected_s=expected_s, now_s=now_s)

    def failed(self, claim: Claim) -> None:
        """The server did not answer."""
        self._outliers.failed(claim.server.name, self._state.now_s())

    def judge_servers(self) -> None:
        """Eject those that are much slower than the others or do not answer, and take back those that do well again."""
        servers = self._state.fleet.servers
        out = self._outliers.judge([name for name, server in servers.items() if server.is_up], self._state.now_s())
        for name, server in servers.items():
            server.is_ejected = name in out
            server.probe_from_s = out.get(name, math.inf)

    def ready(self) -> set[str]:
        """Models with a copy that is ready."""
        servers = self._state.fleet.servers.values()
        return {copy.model for server in servers if server.is_up for copy in server.copies.values() if copy.state is ModelState.READY}

    def is_missing(self, claim: Claim) -> None:
        """The server says that it does not have what was there."""
        if claim.server.copies.get(claim.facts.name) is claim.copy:
            self.loads.drop(claim.server, claim.copy, FleetEventKind.LOST, "the server says that it does not have it")

    def withdraw(self, model: str) -> None:
        """Load it for nobody, until it is offered again."""
        self.loads.withdrawn.add(model)

    def offer(self, model: str) -> None:
        """Load it again for who asks, also if it failed before."""
        self.loads.withdrawn.discard(model)
        self.loads.forgive(model)

    async def bring(self, model: str, *, deadline_s: float) -> None:
        """Return when there is a copy, however long it takes. Raises ModelLoadFailed; Overloaded: it will not be there in time."""
        facts = self._state.fleet.models[model]
        while not self._state.fleet.ready_copies(model):
            if (reason := self.loads.why_quarantined(model)) is not None:
                raise ModelLoadFailed(reason)
            placement = None if self.loads.is_loading(model) else place(self._state.fleet, model, self._state.now_s())
            if isinstance(placement, Refusal) and placement.obstacle is Obstacle.TOO_LARGE:
                raise Overloaded(f"model {placement.text}", retry_after_s=placement.retry_after_s)
            await self._wait(facts, deadline_s)

    # Waiting

    async def _wait(self, facts: ModelFacts, deadline_s: float) -> None:
        """Until something has changed. Raises Overloaded: there is no time for that."""
        now_s = self._state.now_s()
        refusal = None if self.loads.is_loading(facts.name) else self._refusal(facts)
        left_s = deadline_s - now_s
        expected_s = self._expected_s(facts) if refusal is None else self._retry_s(refusal)
        if left_s <= 0 or expected_s > left_s:
            raise Overloaded(self._why_not(facts, refusal, expected_s), retry_after_s=max(expected_s, _LEAST_RETRY_S))
        timeout_s = left_s if refusal is None else min(left_s, expected_s)
        await self._state.wait_for_change(timeout_s, for_room=refusal is not None)

    def _refusal(self, facts: ModelFacts) -> Refusal | None:
        """Why it is not being loaded; None: it is now."""
        placement = place(self._state.fleet, facts.name, self._state.now_s())
        if isinstance(placement, Refusal):
            if facts.refused_since_s == NEVER_S:
                facts.refused_since_s = self._state.now_s()
            return placement
        self.loads.begin(facts, placement)
        return None

    def _retry_s(self, refusal: Refusal) -> float:
        return min(refusal.retry_after_s, _RESTART_S) if refusal.obstacle is Obstacle.NO_SERVER else refusal.retry_after_s

    def _expected_s(self, facts: ModelFacts) -> float:
        """Until it is ready, as far as can be told."""
        now_s = self._state.now_s()
        holders = self._state.fleet.holders.get(facts.name, {})
        ready = [server.copies[facts.name].ready_s for server in holders.values() if server.copies[facts.name].state is ModelState.LOADING]
        return max(0.0, min(ready, default=now_s + facts.load_s) - now_s)

    def _why_not(self, facts: ModelFacts, refusal: Refusal | None, expected_s: float) -> str:
        if refusal is None:
            return f"model '{facts.name}' is being loaded, which is expected to take {expected_s:.1f} s; try again then"
        reason = self.loads.why_quarantined(facts.name)
        because = "" if reason is None else f": {reason}"
        return f"model {refusal.text}{because}; try again in {refusal.retry_after_s:.1f} s"

    # Loading

    def _consider(self, facts: ModelFacts, *, sooner_than_s: float) -> None:
        """Load one more copy if a request would be served sooner there; beside one that is being loaded, too, since a burst cannot wait."""
        now_s = self._state.now_s()
        if now_s < self._no_copy_before_s.get(facts.name, now_s):
            return
        placement = place(self._state.fleet, facts.name, now_s, sooner_than_s=sooner_than_s)
        if isinstance(placement, Placement):
            self.loads.begin(facts, placement)
        else:
            self._no_copy_before_s[facts.name] = now_s + _LOOK_AGAIN_S
