"""Loads and unloads replicas, each in a background task, so a load continues for other callers when one of them leaves.

`fleet/routing/model_router` and `fleet/reconciler` call it, and decide which replicas are loaded where. One plan of
`fleet/domain/placement/load_plan` runs at a time on each server (`fleet/loading/load_plans`); victims are chosen when a load's
turn comes, not when it is requested.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Protocol

from control_plane.core.errors import ControlPlaneError
from control_plane.core.model import ModelState
from control_plane.fleet.domain.event import FleetEventKind
from control_plane.fleet.domain.fleet import ModelFacts, Replica, Server
from control_plane.fleet.domain.placement.limits import LIMITS, PlacementLimits
from control_plane.fleet.domain.placement.placement import Obstacle, Placement, Refusal, place, victims_on
from control_plane.fleet.loading.replica_repairs import RepairLeader, ReplicaRepairs
from control_plane.fleet.loading.server_turns import ServerLoader, ServerTurns
from control_plane.fleet.view.state import FleetState

_log = logging.getLogger(__name__)

_LEADERS_TO_JUDGE = frozenset((Obstacle.IN_USE, Obstacle.CHURN, Obstacle.LATE, Obstacle.ON_TRIAL))
"""Obstacles that depend on what other processes use and how much, and on earlier loads: the leader knows
these best."""

_IN_POOL = replace(LIMITS, stays_in_pool=True)


class Leader(RepairLeader, Protocol):
    """Line to the fleet's leader, where that may be another process: `fleet/leadership/leader_requests`."""

    def request_replica(self, model: str, pool: str | None) -> bool:
        """Ask the leader to load a model, in a pool if one is named; False if this process is the leader and
        must do it itself."""


class Files(Protocol):
    """Port to the places of models' files: `fleet/view/files`."""

    def is_cold(self, model: str) -> bool:
        """Whether the model has to be fetched first."""

    def expected_fetch_s(self, model: str) -> float:
        """Seconds until a fetch of the model has ended."""

    def held_locally(self, model: str) -> AbstractAsyncContextManager[None]:
        """Context manager: within the block the model's files are here, stay here, and are described.

        Raises ControlPlaneError, also if the files show that no server could load the model.
        """

    def held_at(self, model: str, server: str) -> AbstractAsyncContextManager[None]:
        """Context manager as `held_locally`, for a server that may have files of its own."""


class ReplicaLoader:
    """Replica loader: begins loads, once `run` runs, if this process is the fleet's leader; otherwise it asks
    the leader to."""

    def __init__(
        self,
        state: FleetState,
        loaders: Mapping[str, ServerLoader],
        *,
        files: Files | None = None,
        leader: Leader | None = None,
    ) -> None:
        """`loaders` is by server; servers may join and leave it. Without `leader` this process is it."""
        self._leader = leader
        self._files = files
        self._state = state
        self._turns = ServerTurns(state, loaders)
        self.repairs = ReplicaRepairs(self._turns, leader)
        self._loads: dict[tuple[str, str], asyncio.Task[None]] = {}
        """(model, server) -> the load under way."""
        self._fetching: dict[str, float] = {}
        """Model whose files are being fetched -> the load time expected once they are here."""
        self._leaving: set[tuple[str, str]] = set()
        """(model, server) of replicas that are being unloaded, or wait for their turn to be."""

    async def run(self) -> None:
        """Own the loads under way, until cancelled."""
        await self._turns.tasks.run()

    def is_loading(self, model: str) -> bool:
        """Whether a replica of the model is being loaded, or fetched to be loaded."""
        return model in self._fetching or self._state.fleet.is_loading(model)

    def expected_s(self, facts: ModelFacts) -> float:
        """Seconds until the first replica that is being loaded is ready, or, if there is none, until one
        would be that begins now."""
        if facts.name in self._fetching and self._files is not None:
            return self._files.expected_fetch_s(facts.name) + self._fetching[facts.name]
        now_s, ready = self._state.now_s(), [replica.ready_s for replica in self._state.fleet.loading_replicas(facts.name)]
        return max(0.0, min(ready, default=now_s + facts.load_s) - now_s)

    def load_if_none_is(self, model: str, *, pool: str | None = None) -> None:
        """Begin to load one more replica, in this pool only, if placement agrees. Nothing happens while
        another one is being loaded."""
        if not self.is_loading(model):
            self.load_replica(self._state.fleet.models[model], pool=pool, limits=_IN_POOL)

    def load_replica(
        self, facts: ModelFacts, *, pool: str | None = None, must_beat_s: float = math.inf, limits: PlacementLimits = LIMITS
    ) -> Refusal | None:
        """Load one more replica if placement agrees; returns None if it is under way, otherwise why not.
        Raises UpstreamUnavailable: nothing is loaded now."""
        # Fetched before it is placed: its size, by which it is placed, is not known before.
        if self._begin_fetch(facts, pool):
            return None
        now_s = self._state.now_s()
        placement = place(self._state.fleet, facts.name, now_s, must_beat_s=must_beat_s, pool=pool, limits=limits)
        if isinstance(placement, Refusal):
            self.ask_leader(facts, placement, pool=pool)
            return placement
        self._load_as_placed(facts, placement, pool)
        return None

    def ask_leader(self, facts: ModelFacts, refusal: Refusal, *, pool: str | None = None) -> bool:
        """Ask the leader, if it is another process, to load the model where it may in spite of this refusal; whether it was
        asked."""
        return refusal.obstacle in _LEADERS_TO_JUDGE and self._ask_leader_to_load(facts, pool)

    def _ask_leader_to_load(self, facts: ModelFacts, pool: str | None) -> bool:
        """Ask the leader to load the model; False if this process is the leader."""
        return self._leader is not None and self._leader.request_replica(facts.name, pool)

    def _begin_fetch(self, facts: ModelFacts, pool: str | None) -> bool:
        """Begin to fetch the files of a cold model; whether they are being fetched. The model is placed only once they are
        here and its size is known, so no server waits meanwhile."""
        if self._files is None or facts.quarantined_until_s > self._state.now_s():
            return False
        if facts.name not in self._fetching and self.is_cold(facts.name):
            self._turns.tasks.create_task(self._fetch_and_load(facts, self._files, pool), name=f"fetch-{facts.name}")
            # What remains of the expected load time once the fetch is over.
            self._fetching[facts.name] = max(0.0, facts.load_s - self._files.expected_fetch_s(facts.name))
        return facts.name in self._fetching

    async def _fetch_and_load(self, facts: ModelFacts, files: Files, pool: str | None) -> None:
        """Fetch a model, and keep its files until the load is over. If there is no room for it then, requests
        that wait will ask again."""
        try:
            async with files.held_locally(facts.name):
                del self._fetching[facts.name]
                if self.load_replica(facts, pool=pool) is None:
                    await self.wait_for_loads(facts.name, timeout_s=math.inf)
        except Exception as exc:  # as in `_load`
            self._turns.note_failure(facts, "", exc)
        finally:
            self._fetching.pop(facts.name, None)
            self._state.changed()

    def is_cold(self, model: str) -> bool:
        """Whether the model has to be fetched first; until then its size is a guess."""
        return self._files is not None and self._files.is_cold(model)

    def is_being_unloaded(self, model: str, server: str) -> bool:
        """Whether the replica is being unloaded, or waits for its turn to be."""
        return (model, server) in self._leaving

    def schedule_unload(
        self, model: str, server: str, *, kind: FleetEventKind, reason: str, still: Callable[[], bool] = lambda: True
    ) -> None:
        """Schedule an unload of the replica in a background task; it is dropped if `still` no longer holds
        when its turn comes."""
        if self._turns.tasks.is_open and (model, server) not in self._leaving:
            self._leaving.add((model, server))
            self._turns.tasks.create_task(self._unload_or_log(model, server, kind, reason, still), name=f"unload-{model}")

    async def _unload_or_log(self, model: str, server: str, kind: FleetEventKind, reason: str, still: Callable[[], bool]) -> None:
        """Carry out a scheduled unload. A failure is only logged: the reconciler will see what is left and
        try again."""
        try:
            await self._unload_in_turn(model, server, kind, reason, still)
        except ControlPlaneError as exc:
            _log.warning("a replica could not be unloaded: %s", exc, extra={"model": model, "server": server})
        finally:
            self._leaving.discard((model, server))

    async def wait_for_loads(self, model: str, *, timeout_s: float) -> None:
        """Return when no load of the model is under way, or after `timeout_s`."""
        tasks = [task for (name, _), task in self._loads.items() if name == model]
        if tasks:
            await asyncio.wait(tasks, timeout=None if timeout_s == math.inf else timeout_s)

    async def reload(self, model: str, server: str, *, reason: str = "an administrator asked for it") -> None:
        """Load one replica anew. If there is no room for it twice it is unloaded first, and its requests
        wait. A caller that leaves does not end it. Raises ControlPlaneError."""
        await self._turns.tasks.run_shielded(partial(self._reload_in_turn, model, server, reason), name=f"reload-{model}")

    async def _reload_in_turn(self, model: str, server: str, reason: str) -> None:
        facts = self._state.fleet.models[model]
        async with self._turns.turn(server):
            loader = self._turns.loader_of(server)
            # With room for two the old replica serves until the new one is ready.
            if self._state.fleet.servers[server].free_bytes >= facts.resident_bytes:
                await loader.reload(facts)
            else:
                await loader.load_after_evicting(facts, (model,))
        self._turns.tell(FleetEventKind.LOADED, model, server, reason)

    async def unload(self, model: str, server: str, *, kind: FleetEventKind, reason: str) -> None:
        """Unload one replica and wait for that. A caller that leaves does not end it. Raises
        ControlPlaneError."""
        work = partial(self._unload_in_turn, model, server, kind, reason)
        await self._turns.tasks.run_shielded(work, name=f"unload-{model}")

    async def _unload_in_turn(
        self, model: str, server: str, kind: FleetEventKind, reason: str, still: Callable[[], bool] = lambda: True
    ) -> None:
        async with self._turns.turn(server):
            # Asked in the turn: a request may have come while the unload waited.
            if still():
                await self._turns.loader_of(server).unload(model)
                self._turns.tell(kind, model, server, reason)

    def forget(self, server: str) -> None:
        """Forget a server that has left."""
        self._turns.forget(server)

    def _load_as_placed(self, facts: ModelFacts, placement: Placement, pool: str | None) -> None:
        """Load the model as `placement` says, or have the leader load it where it likes."""
        if self._ask_leader_to_load(facts, pool):
            return
        server, now_s = self._state.fleet.servers[placement.server], self._state.now_s()
        replica = Replica(facts.name, ModelState.LOADING, 0, now_s, placement.ready_s, last_used_s=now_s)
        key = (facts.name, server.name)
        task = self._turns.tasks.create_task(self._load(facts, server, replica), name=f"load-{facts.name}-on-{server.name}")
        self._state.announce(server, replica)
        self._loads[key] = task
        # For a task that is cancelled before it has begun: then nothing of `_load` runs.
        task.add_done_callback(lambda task: self._ended(key, task))

    def _ended(self, key: tuple[str, str], task: asyncio.Task[None] | None) -> None:
        if self._loads.get(key) is task:
            del self._loads[key]
        self._state.changed()

    async def _load(self, facts: ModelFacts, server: Server, replica: Replica) -> None:
        """Load a replica when its turn comes. It does not raise: those who wait look at the view again, and
        find the replica or a reason."""
        has_begun = False
        try:
            # The files first, then the turn: a fetch may take minutes, and must not hold up the server's
            # other loads.
            async with self._files_held_at(facts, server.name), self._turns.turn(server.name):
                has_begun = True
                there, victims = server.replicas.get(facts.name), victims_on(self._state.fleet, server, facts.name, self._state.now_s())
                # Another load may have brought the model in while this one waited, or an administrator may
                # have suspended it.
                has_come = there is not None and there is not replica and there.state is ModelState.READY
                if victims is not None and not has_come and not self._state.specs.is_suspended(facts.name):
                    await self._load_and_record(facts, server, victims)
        except Exception as exc:  # the root of a task: one model's broken files must not end the gateway
            self._turns.note_failure(facts, server.name, exc, has_begun=has_begun)
        finally:
            self._state.drop(server, replica)
            self._state.reschedule_loads(server)
            # Not left to the task's callback: those who are woken by the change must not find this load still
            # under way.
            self._ended((facts.name, server.name), asyncio.current_task())

    def _files_held_at(self, facts: ModelFacts, server: str) -> AbstractAsyncContextManager[None]:
        """Hold the model's files. Even warm files may have to be verified or fetched again, so this comes
        before the server's turn, and before anything is evicted."""
        return nullcontext() if self._files is None else self._files.held_at(facts.name, server)

    async def _load_and_record(self, facts: ModelFacts, server: Server, victims: tuple[str, ...]) -> None:
        """Load the model in place of the victims, and record that; what was evicted is recorded even if the load fails."""
        began_s = self._state.now_s()
        try:
            await self._turns.loader_of(server.name).load_after_evicting(facts, victims)
        finally:
            for victim in victims:
                if victim not in server.replicas:
                    self._turns.tell(FleetEventKind.EVICTED, victim, server.name, f"for '{facts.name}', which is asked for")
        took_s = self._state.now_s() - began_s
        self._state.measurements.succeeded(facts, server)
        self._turns.tell(FleetEventKind.LOADED, facts.name, server.name, "", took_s)
