"""The copies of models: loads them and unloads them, each in a task that belongs to nobody who waits for it.

Called by `fleet/routing/residency` and `fleet/reconciler`, which decide what should be where. On a server one plan of
`fleet/domain/load_plan` runs at a time (`fleet/loading/load_plans`); what has to go for a model is asked when its turn has come.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from typing import Protocol

from control_plane.core.errors import ControlPlaneError, ModelLoadFailed, Overloaded, StoreUnavailable, UpstreamUnavailable
from control_plane.core.model import ModelState
from control_plane.fleet.domain.event import FleetEventKind
from control_plane.fleet.domain.fleet import NEVER_S, Copy, Fleet, ModelFacts, Server
from control_plane.fleet.domain.placement import LIMITS, Obstacle, Placement, PlacementLimits, Refusal, place
from control_plane.fleet.view.state import FleetState

_log = logging.getLogger(__name__)

AskOwner = Callable[[str, str | None], bool]
"""Has a model loaded, in a pool if one is named, by who may; False: that is this process."""

TellOwner = Callable[[str, str], bool]
"""Of a server's copy of a model that has died, who may load it anew; False: that is this process."""

_OWNERS_TO_JUDGE = frozenset((Obstacle.IN_USE, Obstacle.CHURN, Obstacle.LATE, Obstacle.ON_TRIAL))
"""What others use, and how much, and what has been loaded before, the fleet's owner knows best."""

_IN_POOL = replace(LIMITS, stays_in_pool=True)
_PAUSE_S = 0.5
"""After a load that could not even begin: tried again at once it would fail at once, and so on."""


class Plans(Protocol):
    """`fleet/loading/load_plans` of one server."""

    async def bring_in(self, model: ModelFacts, victims: tuple[str, ...]) -> None:
        """Unload the victims, wait for their memory, load the model. Raises ControlPlaneError: it is not there, or nobody knows."""

    async def reload(self, model: ModelFacts) -> None:
        """Load it anew over itself, which for a while takes its memory twice. Raises ControlPlaneError."""

    async def revive(self, model: ModelFacts) -> None:
        """Load a model anew whose process has died. Raises ControlPlaneError."""

    async def take_out(self, model: str) -> None:
        """Unload it. Raises ControlPlaneError."""


class Files(Protocol):
    """`fleet/view/files`."""

    def is_cold(self, model: str) -> bool:
        """Whether it has to be fetched first."""

    def expected_fetch_s(self, model: str) -> float:
        """What is left of that."""

    def here(self, model: str) -> AbstractAsyncContextManager[None]:
        """A block in which its files are here and stay, and what they say is known. Raises ControlPlaneError, also where it can be told
        by its files that no server could load it."""


class CopyLoads:
    """Begins loads once `run` runs, where this process is the fleet's owner; where it is not, that is asked to."""

    def __init__(
        self,
        state: FleetState,
        plans: Mapping[str, Plans],
        *,
        files: Files | None = None,
        ask_owner: AskOwner = lambda model, pool: False,
        tell_owner: TellOwner = lambda server, model: False,
    ) -> None:
        """`plans` by server."""
        self._ask_owner = ask_owner
        self._tell_owner = tell_owner
        self._files = files
        self._state = state
        self._plans = plans
        self._tasks: asyncio.TaskGroup | None = None
        self._loads: dict[tuple[str, str], asyncio.Task[None]] = {}
        """Under way, by model and server."""
        self._fetching: dict[str, float] = {}
        """Models whose files are on their way here, and what their loads are expected to take then."""
        self._leaving: set[tuple[str, str]] = set()
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def run(self) -> None:
        """Own the loads under way until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self._tasks = None  # before the group ends, which takes no more tasks then

    def is_loading(self, model: str) -> bool:
        """Whether a copy is under way, be it that its files are fetched first."""
        holders = self._state.fleet.holders.get(model, {})
        return model in self._fetching or any(server.copies[model].state is ModelState.LOADING for server in holders.values())

    def expected_s(self, facts: ModelFacts) -> float:
        """Until the first copy that is under way is ready, or one that begins now."""
        if facts.name in self._fetching and self._files is not None:
            return self._files.expected_fetch_s(facts.name) + self._fetching[facts.name]
        holders, now_s = self._state.fleet.holders.get(facts.name, {}), self._state.now_s()
        ready = [server.copies[facts.name].ready_s for server in holders.values() if server.copies[facts.name].state is ModelState.LOADING]
        return max(0.0, min(ready, default=now_s + facts.load_s) - now_s)

    def want(self, model: str, *, pool: str | None = None) -> None:
        """Begin to load another copy, in that pool and no other, where placement sees fit. Nothing happens while one is being loaded."""
        if not self.is_loading(model):
            self.bring(self._state.fleet.models[model], pool=pool, limits=_IN_POOL)

    def bring(
        self, facts: ModelFacts, *, pool: str | None = None, sooner_than_s: float = math.inf, limits: PlacementLimits = LIMITS
    ) -> Refusal | None:
        """Load one more copy, where placement sees fit; None: it is under way. Raises as `begin`."""
        if self._fetches_first(facts, pool):
            return None
        now_s = self._state.now_s()
        placement = place(self._state.fleet, facts.name, now_s, sooner_than_s=sooner_than_s, pool=pool, limits=limits)
        if isinstance(placement, Refusal):
            self.is_left_to_owner(facts, placement, pool=pool)
            return placement
        self.begin(facts, placement, pool=pool)
        return None

    def is_left_to_owner(self, facts: ModelFacts, refusal: Refusal, *, pool: str | None = None) -> bool:
        """Whether the fleet's owner, another process, has been asked, and may load it all the same."""
        return refusal.obstacle in _OWNERS_TO_JUDGE and self._ask_owner(facts.name, pool)

    def _fetches_first(self, facts: ModelFacts, pool: str | None) -> bool:
        """Whether its files are being fetched: where it fits is known when they are here, and no server waits for that."""
        if self._files is None or facts.quarantined_until_s > self._state.now_s():
            return False
        if facts.name not in self._fetching and self.is_cold(facts.name):
            self._begun().create_task(self._fetch_and_load(facts, self._files, pool), name=f"fetch-{facts.name}")
            self._fetching[facts.name] = max(0.0, facts.load_s - self._files.expected_fetch_s(facts.name))
        return facts.name in self._fetching

    async def _fetch_and_load(self, facts: ModelFacts, files: Files, pool: str | None) -> None:
        """Its files stay until the load is over; where there is no room for it now, who waits for it asks again."""
        try:
            async with files.here(facts.name):
                del self._fetching[facts.name]
                if self.bring(facts, pool=pool) is None:
                    await self.settle(facts.name, timeout_s=math.inf)
        except Exception as exc:  # as in `_bring_in`
            self._quarantine(facts, "", exc)
        finally:
            self._fetching.pop(facts.name, None)
            self._state.changed()

    def is_cold(self, model: str) -> bool:
        """Whether it has to be fetched first: until then its size is a guess."""
        return self._files is not None and self._files.is_cold(model)

    def leaves(self, model: str, server: str) -> bool:
        """Whether it is on its way out, or waits for its turn to go."""
        return (model, server) in self._leaving

    def let_go(self, model: str, server: str, *, kind: FleetEventKind, reason: str, still: Callable[[], bool] = lambda: True) -> None:
        """Unload a copy when it is its turn, if it is `still` to go then, in a task of its own."""
        if self._tasks is not None and (model, server) not in self._leaving:
            self._leaving.add((model, server))
            self._tasks.create_task(self._let_go(model, server, kind, reason, still), name=f"unload-{model}")

    async def _let_go(self, model: str, server: str, kind: FleetEventKind, reason: str, still: Callable[[], bool]) -> None:
        try:
            async with self._turns[server]:
                if still():
                    await self._plans_of(server).take_out(model)
                    self._tell(kind, model, server, reason)
        except ControlPlaneError as exc:
            _log.warning("a copy could not be unloaded: %s", exc, extra={"model": model, "server": server})
        finally:
            self._leaving.discard((model, server))

    def revive(self, copy: Copy, server: Server, *, reason: str) -> None:
        """Load a copy anew whose process has died, in a task of its own, or have the owner do that; until then nobody is sent there."""
        if self._tell_owner(server.name, copy.model):
            return
        if self._tasks is not None and (server.name, copy.model) not in self._state.settling:
            self._state.settling.add((server.name, copy.model))
            copy.state, copy.ready_s = ModelState.LOADING, self._state.now_s() + self._state.fleet.models[copy.model].load_s
            self._tell(FleetEventKind.LOST, copy.model, server.name, reason)
            self._tasks.create_task(self._revive(copy, server), name=f"revive-{copy.model}")

    async def _revive(self, copy: Copy, server: Server) -> None:
        facts, began_s = self._state.fleet.models[copy.model], self._state.now_s()
        try:
            async with self._turns[server.name]:
                if server.copies.get(copy.model) is copy:
                    await self._plans_of(server.name).revive(facts)
                    self._tell(FleetEventKind.LOADED, copy.model, server.name, "", self._state.now_s() - began_s)
        except Exception as exc:  # as in `_bring_in`
            self._quarantine(facts, server.name, exc)
        finally:
            self._state.settling.discard((server.name, copy.model))
            self._state.changed()

    async def settle(self, model: str, *, timeout_s: float) -> None:
        """Return when no load of it is under way."""
        tasks = [task for (name, _), task in self._loads.items() if name == model]
        if tasks:
            await asyncio.wait(tasks, timeout=None if timeout_s == math.inf else timeout_s)

    async def reload(self, model: str, server: str, *, reason: str = "an administrator asked for it") -> None:
        """Load one copy anew; where there is no room for two it is unloaded first, and requests wait. Raises ControlPlaneError."""
        facts = self._state.fleet.models[model]
        async with self._turns[server]:
            plans = self._plans_of(server)
            if self._state.fleet.servers[server].free_bytes >= facts.resident_bytes:
                await plans.reload(facts)
            else:
                await plans.bring_in(facts, (model,))
        self._tell(FleetEventKind.LOADED, model, server, reason)

    async def take_out(self, model: str, server: str, *, kind: FleetEventKind, reason: str) -> None:
        """Unload one copy. Raises ControlPlaneError."""
        async with self._turns[server]:
            await self._plans_of(server).take_out(model)
        self._tell(kind, model, server, reason)

    def _plans_of(self, server: str) -> Plans:
        """Raises UpstreamUnavailable: it has left the fleet while its turn was awaited."""
        if server not in self._plans or server not in self._state.fleet.servers:
            raise UpstreamUnavailable(f"server '{server}' has left the fleet")
        return self._plans[server]

    def forget(self, server: str) -> None:
        """It has left; who still waits for a turn there finds that out."""
        self._turns.pop(server, None)

    def why_quarantined(self, model: str) -> str | None:
        """Why it is not tried again yet; None: it has not failed, or it is."""
        return self._state.measurements.why_quarantined(model)

    def why_failed(self, model: str) -> str | None:
        """Why its last load has failed; None: it has not, or it has been forgiven."""
        return self._state.measurements.why_failed(model)

    def forgive(self, model: str) -> None:
        """Try it again also if it has failed."""
        self._state.measurements.forgive(model)

    def begin(self, facts: ModelFacts, placement: Placement, *, pool: str | None = None) -> None:
        """Load it there, or have the owner load it where it likes. Raises UpstreamUnavailable: nothing is loaded now."""
        if self._ask_owner(facts.name, pool):
            return
        tasks = self._begun()
        server = self._state.fleet.servers[placement.server]
        copy = self._announce(facts, server, placement)
        key = (facts.name, server.name)
        task = self._loads[key] = tasks.create_task(self._load(facts, server, copy), name=f"load-{facts.name}-on-{server.name}")
        task.add_done_callback(lambda task: self._ended(key, task))

    def _begun(self) -> asyncio.TaskGroup:
        if self._tasks is None:
            raise UpstreamUnavailable("models cannot be loaded while the gateway starts or stops; try again shortly")
        return self._tasks

    def _ended(self, key: tuple[str, str], task: asyncio.Task[None] | None) -> None:
        if self._loads.get(key) is task:
            del self._loads[key]
        self._state.changed()

    async def _load(self, facts: ModelFacts, server: Server, copy: Copy) -> None:
        """When it is its turn there. It does not raise: who waits looks again, and finds it there or a reason."""
        fleet = self._state.fleet
        try:
            async with self._here(facts), self._turns[server.name]:
                there, victims = server.copies.get(facts.name), self._victims(facts, server)
                has_come = there is not None and there is not copy and there.state is ModelState.READY
                if victims is not None and not has_come and not self._state.is_withdrawn(facts.name):
                    await self._bring_in(facts, server, victims)
        except Exception as exc:  # as in `_bring_in`
            self._quarantine(facts, server.name, exc)
        finally:
            if server.copies.get(facts.name) is copy:
                fleet.drop_copy(server, facts.name)
            self._reckon(server)
            self._ended((facts.name, server.name), asyncio.current_task())  # who is woken by this does not find it under way

    def _here(self, facts: ModelFacts) -> AbstractAsyncContextManager[None]:
        """What is warm may have to be verified, or fetched anew since its source has changed: not in the server's turn, nor in the place of
        what would go for it."""
        return nullcontext() if self._files is None else self._files.here(facts.name)

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
            await self._plans_of(server.name).bring_in(facts, victims)
        except Exception as exc:  # the root of a task: what one model's files do to us must not end the gateway
            self._quarantine(facts, server.name, exc)
            return
        finally:
            for victim in victims:
                if victim not in server.copies:
                    self._tell(FleetEventKind.EVICTED, victim, server.name, f"for '{facts.name}', which is asked for")
        took_s = self._state.now_s() - began_s
        self._state.measurements.forgive(facts.name)
        facts.refused_since_s = NEVER_S
        self._tell(FleetEventKind.LOADED, facts.name, server.name, "", took_s)

    def _quarantine(self, facts: ModelFacts, server: str, error: Exception) -> None:
        if isinstance(error, UpstreamUnavailable | Overloaded):  # the server's lot, the owner's, or that of what came before it
            facts.quarantined_until_s = self._state.now_s() + _PAUSE_S
            return
        is_passing = isinstance(error, StoreUnavailable) or (isinstance(error, ModelLoadFailed) and error.is_passing)
        self._state.measurements.failed(facts, str(error), is_passing=is_passing)
        self._tell(FleetEventKind.FAILED, facts.name, server, str(error))
        unexpected = None if isinstance(error, ControlPlaneError) else error
        _log.error("model could not be loaded: %s", error, extra={"model": facts.name, "server": server}, exc_info=unexpected)

    def drop(self, server: Server, copy: Copy, kind: FleetEventKind, reason: str) -> None:
        """It is not there any more."""
        self._state.fleet.drop_copy(server, copy.model)
        self._tell(kind, copy.model, server.name, reason)
        self._state.changed()

    def _tell(self, kind: FleetEventKind, model: str, server: str, reason: str, seconds: float = 0.0) -> None:
        self._state.events.tell(kind, model=model, server=server, reason=reason, seconds=seconds)
