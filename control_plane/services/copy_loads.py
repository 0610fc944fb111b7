"""The copies of models: loads them and unloads them, each in a task that belongs to nobody who waits for it.

Called by `services/residency` and `services/reconciler`, which decide what should be where. On a server one plan of
`policy/load_plan` runs at a time (`services/load_plans`); what has to go for a model is asked when its turn has come.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

from control_plane.domain.errors import ControlPlaneError, Overloaded, UpstreamUnavailable
from control_plane.domain.fleet import NEVER_S, Copy, Fleet, ModelFacts, Server
from control_plane.domain.fleet_event import FleetEvent, FleetEventKind
from control_plane.domain.model import ModelState
from control_plane.policy.placement import Placement, place
from control_plane.policy.restart import RestartLimits, restart_delay_s
from control_plane.services.fleet_state import FleetState

_log = logging.getLogger(__name__)

_QUARANTINE = RestartLimits(first_delay_s=2.0, max_delay_s=300.0)
_EVENTS = 500
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


class CopyLoads:
    """Begins loads once `run` runs, where this process is the fleet's owner; where it is not, that is asked to."""

    def __init__(
        self,
        state: FleetState,
        plans: Mapping[str, Plans],
        *,
        ask_owner: Callable[[str], bool] = lambda model: False,
        today_s: Callable[[], float] = time.time,
    ) -> None:
        """`plans` by server. `ask_owner` has a model loaded by who may; False: that is this process. `today_s` is seconds since 1970."""
        self._ask_owner = ask_owner
        self._state = state
        self._plans = plans
        self._today_s = today_s
        self._tasks: asyncio.TaskGroup | None = None
        self._loads: dict[tuple[str, str], asyncio.Task[None]] = {}
        """Under way, by model and server."""
        self._leaving: set[tuple[str, str]] = set()
        self._failures: dict[str, int] = {}
        self._why_quarantined: dict[str, str] = {}
        self._turns = {name: asyncio.Lock() for name in plans}
        self.withdrawn: set[str] = set()
        """Models that an administrator has unloaded: they are loaded for nobody."""
        self.events: deque[FleetEvent] = deque(maxlen=_EVENTS)

    async def run(self) -> None:
        """Own the loads under way until cancelled."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                await asyncio.get_running_loop().create_future()
        finally:
            self._tasks = None

    def is_loading(self, model: str) -> bool:
        """Whether a copy is under way."""
        holders = self._state.fleet.holders.get(model, {})
        return any(server.copies[model].state is ModelState.LOADING for server in holders.values())

    def want(self, model: str) -> None:
        """Begin to load another copy, where placement sees fit. Nothing happens while one is being loaded."""
        if not self.is_loading(model):
            placement = place(self._state.fleet, model, self._state.now_s())
            if isinstance(placement, Placement):
                self.begin(self._state.fleet.models[model], placement)

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

    def why_quarantined(self, model: str) -> str | None:
        """Why it is not tried again yet; None: it has not failed, or it is."""
        facts = self._state.fleet.models.get(model)
        is_in_it = facts is not None and model in self._failures and facts.quarantined_until_s > self._state.now_s()
        return self._why_quarantined[model] if is_in_it else None

    def forgive(self, model: str) -> None:
        """Try it again also if it has failed."""
        self._failures.pop(model, None)
        if (facts := self._state.fleet.models.get(model)) is not None:
            facts.quarantined_until_s = NEVER_S

    def begin(self, facts: ModelFacts, placement: Placement) -> None:
        """Load it there, or have the owner load it where it likes. Raises UpstreamUnavailable: nothing is loaded now."""
        if self._ask_owner(facts.name):
            return
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
                if victims is not None and facts.name not in self.withdrawn:
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

    def drop(self, server: Server, copy: Copy, kind: FleetEventKind, reason: str) -> None:
        """It is not there any more."""
        self._state.fleet.drop_copy(server, copy.model)
        self._tell(kind, copy.model, server.name, reason)
        self._state.changed()

    def _tell(self, kind: FleetEventKind, model: str, server: str, reason: str, seconds: float = 0.0) -> None:
        self.events.append(FleetEvent(self._today_s(), kind, model, server, reason, seconds))
