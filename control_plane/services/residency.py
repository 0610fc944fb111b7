"""Which models are on which servers: loads what requests ask for, and unloads what has to go for that.

Of the process that owns the fleet (`services/ownership`). Decisions are `policy/routing` and `policy/placement`; a plan of
`policy/load_plan` carries each out, one at a time on a server (`services/load_plans`) and one at a time for a model. A load belongs to
nobody who waits for it: it goes on when they leave.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

from control_plane.domain.errors import ControlPlaneError, ModelLoadFailed, ModelNotFound, Overloaded, UpstreamUnavailable
from control_plane.domain.fleet import NEVER_S, Copy, Fleet, ModelFacts, Server
from control_plane.domain.fleet_event import FleetEvent, FleetEventKind
from control_plane.domain.inference import InferCall
from control_plane.domain.model import ModelState
from control_plane.policy.outliers import Outliers
from control_plane.policy.placement import Obstacle, Placement, Refusal, place
from control_plane.policy.restart import RestartLimits, restart_delay_s
from control_plane.policy.routing import choose
from control_plane.services.fleet_state import Claim, FleetState
from control_plane.services.sequences import Sequences

_log = logging.getLogger(__name__)

_QUARANTINE = RestartLimits(first_delay_s=2.0, max_delay_s=300.0)
_LOOK_AGAIN_S = 0.02
"""A look at all servers takes up to a few milliseconds, and a busy model would ask for one with every request."""
_RESTART_S = 2.0
"""A Triton that has ended is back in about that."""
_EVENTS = 500
_LEAST_RETRY_S = 1.0
_PAUSE_S = 0.5
"""After a load that could not even begin: tried again at once it would fail at once, and so on."""


class Plans(Protocol):
    """`services.load_plans` of one server."""

    async def bring_in(self, model: ModelFacts, victims: tuple[str, ...]) -> None:
        """Unload the victims, wait for their memory, load the model. Raises ControlPlaneError: it is not there, or nobody knows."""

    async def reload(self, model: ModelFacts) -> None:
        """Load it anew over itself, which for a while takes its memory twice. Raises ControlPlaneError."""

    async def take_out(self, model: str) -> None:
        """Unload it. Raises ControlPlaneError."""


class Residency:
    """Begins loads once `run` runs."""

    def __init__(
        self,
        state: FleetState,
        plans: Mapping[str, Plans],
        *,
        wait_s: float,
        today_s: Callable[[], float] = time.time,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """A request waits for `wait_s` at most. `today_s` is seconds since 1970."""
        self._state = state
        self._plans = plans
        self._wait_s = wait_s
        self._today_s = today_s
        self._draw = draw
        self._tasks: asyncio.TaskGroup | None = None
        self._loads: dict[tuple[str, str], asyncio.Task[None]] = {}
        """Under way, by model and server."""
        self._failures: dict[str, int] = {}
        self._why_quarantined: dict[str, str] = {}
        self._leaving: set[tuple[str, str]] = set()
        self._sequences = Sequences(state.now_s)
        self._outliers = Outliers()
        self._no_copy_before_s: dict[str, float] = {}
        """Of busy models for which another copy would have been no use just now."""
        self._withdrawn: set[str] = set()
        """Models that an administrator has unloaded: they are not loaded for requests."""
        self._turns = {name: asyncio.Lock() for name in plans}
        self.events: deque[FleetEvent] = deque(maxlen=_EVENTS)

    async def run(self) -> None:
        """Own the loads under way until cancelled."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                await asyncio.get_running_loop().create_future()
        finally:
            self._tasks = None

    async def claim(self, call: InferCall, *, deadline_s: float) -> Claim:
        """A place at a copy of the request's model, when there is one.

        Raises:
            ModelNotFound: no repository has it, or an administrator has unloaded it. Overloaded: it will not be there by the loop's
                time `deadline_s`; it is loaded all the same, if it can be.
        """
        fleet, model, now_s = self._state.fleet, call.model_name, self._state.now_s()
        facts = fleet.models.get(model)
        if facts is None or model in self._withdrawn:
            raise ModelNotFound(f"Request for unknown model: '{model}' is not found")
        self._state.used(model)
        if call.sequence_id and (held := self._sequences.held_at(call)) is not None:
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
                if call.sequence_id:
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
            self._drop(claim.server, claim.copy, FleetEventKind.LOST, "the server says that it does not have it")

    def want(self, model: str) -> None:
        """Begin to load another copy, where placement sees fit. Nothing happens while one is being loaded."""
        if not self._is_loading(model):
            placement = place(self._state.fleet, model, self._state.now_s())
            if isinstance(placement, Placement):
                self._begin(self._state.fleet.models[model], placement)

    def let_go(self, model: str, server: str, *, kind: FleetEventKind, reason: str) -> None:
        """Unload a copy, in a task of its own."""
        if self._tasks is not None and (model, server) not in self._leaving:
            self._leaving.add((model, server))
            self._tasks.create_task(self._let_go(model, server, kind, reason), name=f"unload-{model}")

    async def _let_go(self, model: str, server: str, kind: FleetEventKind, reason: str) -> None:
        try:
            await self.take_out(model, server, kind=kind, reason=reason)
        except ControlPlaneError as exc:
            _log.warning("a copy could not be unloaded: %s", exc, extra={"model": model, "server": server})
        finally:
            self._leaving.discard((model, server))

    def withdraw(self, model: str) -> None:
        """Load it for nobody, until it is offered again."""
        self._withdrawn.add(model)

    def offer(self, model: str) -> None:
        """Load it again for who asks, also if it failed before."""
        self._withdrawn.discard(model)
        self._failures.pop(model, None)
        if (facts := self._state.fleet.models.get(model)) is not None:
            facts.quarantined_until_s = NEVER_S

    async def bring(self, model: str, *, deadline_s: float) -> None:
        """Return when there is a copy, however long it takes. Raises ModelLoadFailed; Overloaded: it will not be there in time."""
        facts = self._state.fleet.models[model]
        while not self._state.fleet.ready_copies(model):
            if facts.quarantined_until_s > self._state.now_s() and model in self._failures:
                raise ModelLoadFailed(self._why_quarantined[model])
            await self._wait(facts, deadline_s)

    async def settle(self, model: str, *, timeout_s: float) -> None:
        """Return when no load of it is under way."""
        tasks = [task for (name, _), task in self._loads.items() if name == model]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)

    async def reload(self, model: str, server: str) -> None:
        """Load one copy anew; where there is no room for two it is unloaded first, and requests wait. Raises ControlPlaneError."""
        facts, at = self._state.fleet.models[model], self._state.fleet.servers[server]
        async with self._turns[server]:
            if at.free_bytes >= facts.resident_bytes:
                await self._plans[server].reload(facts)
            else:
                await self._plans[server].bring_in(facts, (model,))
        self._tell(FleetEventKind.LOADED, model, server, "an administrator asked for it")

    async def take_out(self, model: str, server: str, *, kind: FleetEventKind, reason: str) -> None:
        """Unload one copy. Raises ControlPlaneError."""
        async with self._turns[server]:
            await self._plans[server].take_out(model)
        self._tell(kind, model, server, reason)

    # Waiting

    async def _wait(self, facts: ModelFacts, deadline_s: float) -> None:
        """Until something has changed. Raises Overloaded: there is no time for that."""
        now_s = self._state.now_s()
        refusal = None if self._is_loading(facts.name) else self._refusal(facts)
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
        self._begin(facts, placement)
        return None

    def _retry_s(self, refusal: Refusal) -> float:
        return min(refusal.retry_after_s, _RESTART_S) if refusal.obstacle is Obstacle.NO_SERVER else refusal.retry_after_s

    def _is_loading(self, model: str) -> bool:
        holders = self._state.fleet.holders.get(model, {})
        return any(server.copies[model].state is ModelState.LOADING for server in holders.values())

    def _expected_s(self, facts: ModelFacts) -> float:
        """Until it is ready, as far as can be told."""
        now_s = self._state.now_s()
        holders = self._state.fleet.holders.get(facts.name, {})
        ready = [server.copies[facts.name].ready_s for server in holders.values() if server.copies[facts.name].state is ModelState.LOADING]
        return max(0.0, min(ready, default=now_s + facts.load_s) - now_s)

    def _why_not(self, facts: ModelFacts, refusal: Refusal | None, expected_s: float) -> str:
        if refusal is None:
            return f"model '{facts.name}' is being loaded, which is expected to take {expected_s:.1f} s; try again then"
        reason = self._why_quarantined.get(facts.name)
        because = f": {reason}" if facts.name in self._failures and facts.quarantined_until_s > self._state.now_s() else ""
        return f"model {refusal.text}{because}; try again in {refusal.retry_after_s:.1f} s"

    # Loading

    def _consider(self, facts: ModelFacts, *, sooner_than_s: float) -> None:
        """Load one more copy if a request would be served sooner there; beside one that is being loaded, too, since a burst cannot wait."""
        now_s = self._state.now_s()
        if now_s < self._no_copy_before_s.get(facts.name, now_s):
            return
        placement = place(self._state.fleet, facts.name, now_s, sooner_than_s=sooner_than_s)
        if isinstance(placement, Placement):
            self._begin(facts, placement)
        else:
            self._no_copy_before_s[facts.name] = now_s + _LOOK_AGAIN_S

    def _begin(self, facts: ModelFacts, placement: Placement) -> None:
        if self._tasks is None:
            raise UpstreamUnavailable("models cannot be loaded while the gateway starts or stops; try again shortly")
        server = self._state.fleet.servers[placement.server]
        copy = self._announce(facts, server, placement)
        key = (facts.name, server.name)
        task = self._loads[key] = self._tasks.create_task(self._load(facts, server, copy), name=f"load-{facts.name}-on-{server.name}")
        task.add_done_callback(lambda task: self._ended(key, task))

    def _ended(self, key: tuple[str, str], task: asyncio.Task[None] | None) -> None:
        if self._loads.get(key) is task:
            del self._loads[key]
        self._state.changed()

    async def _load(self, facts: ModelFacts, server: Server, copy: Copy) -> None:
        """When it is its turn there. It does not raise: who waits looks again, and finds it there or a reason."""
        fleet = self._state.fleet
        try:
            async with self._turns[server.name]:
                victims = self._victims(facts, server)
                if victims is not None and facts.name not in self._withdrawn:
                    await self._bring_in(facts, server, victims)
        finally:
            if server.copies.get(facts.name) is copy:
                fleet.drop_copy(server, facts.name)
            self._reckon(server)
            self._ended((facts.name, server.name), asyncio.current_task())  # who is woken by this does not find it under way

    def _reckon(self, server: Server) -> None:
        """When the loads that wait there will have ended, now that the one before them has, sooner or later than it was expected."""
        until_s, models = self._state.now_s(), self._state.fleet.models
        loading = [
            copy for copy in server.copies.values() if copy.state is ModelState.LOADING and not copy.is_step and copy.model in models
        ]
        for copy in sorted(loading, key=lambda copy: copy.ready_s):
            until_s += models[copy.model].load_s
            copy.ready_s = until_s
        server.loads_until_s = until_s

    def _announce(self, facts: ModelFacts, server: Server, placement: Placement) -> Copy:
        """It is going to be there, which whoever chooses a server should know; its memory counts from the load on."""
        now_s = self._state.now_s()
        copy = Copy(facts.name, ModelState.LOADING, 0, now_s, placement.ready_s, last_used_s=now_s)
        server.loads_until_s = max(server.loads_until_s, placement.ready_s)
        self._state.fleet.put_copy(server, copy)
        return copy

    def _victims(self, facts: ModelFacts, server: Server) -> tuple[str, ...] | None:
        """As of its turn, before which others had theirs; None: there is no room any more."""
        fleet = self._state.fleet
        announced = server.copies.get(facts.name)
        fleet.drop_copy(server, facts.name)
        found = place(Fleet({server.name: server}, fleet.models, fleet.holders), facts.name, self._state.now_s())
        if announced is not None:
            fleet.put_copy(server, announced)
        return found.victims if isinstance(found, Placement) else None

    async def _bring_in(self, facts: ModelFacts, server: Server, victims: tuple[str, ...]) -> None:
        began_s = self._state.now_s()
        try:
            await self._plans[server.name].bring_in(facts, victims)
        except Exception as exc:  # the root of a task: what one model's files do to us must not end the gateway
            self._quarantine(facts, server, exc)
            return
        finally:
            for victim in victims:
                if victim not in server.copies:
                    self._tell(FleetEventKind.EVICTED, victim, server.name, f"for '{facts.name}', which is asked for")
        took_s = self._state.now_s() - began_s
        self._failures.pop(facts.name, None)
        facts.refused_since_s = NEVER_S
        self._tell(FleetEventKind.LOADED, facts.name, server.name, "", took_s)

    def _quarantine(self, facts: ModelFacts, server: Server, error: Exception) -> None:
        if isinstance(error, UpstreamUnavailable | Overloaded):  # the server's lot, the owner's, or that of what came before it
            facts.quarantined_until_s = self._state.now_s() + _PAUSE_S
            return
        failures = self._failures[facts.name] = self._failures.get(facts.name, 0) + 1
        facts.quarantined_until_s = self._state.now_s() + restart_delay_s(failures, limits=_QUARANTINE)
        self._why_quarantined[facts.name] = str(error)
        self._tell(FleetEventKind.FAILED, facts.name, server.name, str(error))
        unexpected = None if isinstance(error, ControlPlaneError) else error
        _log.error("model could not be loaded: %s", error, extra={"model": facts.name, "server": server.name}, exc_info=unexpected)

    def _drop(self, server: Server, copy: Copy, kind: FleetEventKind, reason: str) -> None:
        self._state.fleet.drop_copy(server, copy.model)
        self._tell(kind, copy.model, server.name, reason)
        self._state.changed()

    def _tell(self, kind: FleetEventKind, model: str, server: str, reason: str, seconds: float = 0.0) -> None:
        self.events.append(FleetEvent(self._today_s(), kind, model, server, reason, seconds))
