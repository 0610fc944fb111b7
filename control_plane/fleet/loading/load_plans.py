"""Carries out the plans of `fleet/domain/placement/load_plan` on one server, one plan at a time; `fleet/loading/server_loads`
calls it.

From one plan to the next it remembers only calls that were never answered. Right before each load it reads Triton's index: while
that shows another load, by whomever, it waits; it begins only if the model fits beside everything that is not certainly gone.
Then, with no await in between, `LeaderElection.require` decides. So a plan may be cancelled, fail, or be taken over by another
leader at any point. A plan and all it does is one task: once cancelled it loads nothing later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, replace
from typing import Protocol, assert_never

from control_plane.core.errors import ControlPlaneError, DeadlineExceeded, ModelLoadFailed, Overloaded, UpstreamUnavailable
from control_plane.core.model import ModelState, ModelVersion
from control_plane.fleet.domain.fleet import ModelFacts, Replica, Server
from control_plane.fleet.domain.placement.load_plan import AwaitReady, AwaitReleased, Load, Step, Unload, held_bytes, plan, replicas_of
from control_plane.fleet.ports import PreparedLoad
from control_plane.host.boot_clock import boot_time_s
from control_plane.triton.ports import ModelControl


class ServerModels(Protocol):
    """Port through which plans load and unload models of one Triton: `fleet/loading/server_loads`."""

    def prepared(self, model: str) -> AbstractAsyncContextManager[PreparedLoad]:
        """Context manager of one load, which prepares it first. Raises ControlPlaneError."""

    async def begin_unload(self, model: str) -> None:
        """Return when Triton has accepted to unload the model. Raises ControlPlaneError."""


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """Timeouts and polling intervals of plans, in seconds."""

    load_timeout_s: float = 300.0
    """A load that takes longer hangs, and holds up no other loads; its memory counts until its line in the
    index is gone."""

    release_timeout_s: float = 60.0
    """Time for requests in flight, which Triton finishes before it unloads; it should be no less than these may
    take."""

    first_poll_s: float = 0.05
    """First polling interval: most models are gone within this time, and a look at the index costs Triton
    about a millisecond."""

    max_poll_s: float = 0.5
    """Polling intervals double up to this one."""

    call_visible_after_s: float = 2.0
    """Time after which a call that was begun but not answered is in Triton's index, or never will be: twice
    the lease's margin."""


class LoadPlans:
    """Executor of load plans on one server, for the lifetime of one Triton process there."""

    def __init__(
        self,
        server: Server,
        control: ModelControl,
        models: ServerModels,
        *,
        require: Callable[[], int],
        bytes_of: Callable[[str], int],
        on_index: Callable[[list[ModelVersion]], None] = lambda index: None,
        limits: PlanLimits | None = None,
        now_s: Callable[[], float] = boot_time_s,
    ) -> None:
        """Only name and budget of `server` count: what is on it comes from the index, and `bytes_of` tells
        the size of each model found there.

        `require` is `LeaderElection.require`; `on_index` is called with every index that is read, which keeps the
        view of the fleet fresh.
        """
        self._server = server
        self._control = control
        self._models = models
        self._require = require
        self._bytes_of = bytes_of
        self._on_index = on_index
        self._limits = limits or PlanLimits()
        self._now_s = now_s
        self._turn = asyncio.Lock()
        self._begun: dict[str, float] = {}
        """Model -> when its load was begun, for loads that were neither answered nor seen in the index
        yet."""
        self._loading_since_s: dict[str, float] = {}
        """Model -> when its load began or was first seen under the present lease. Under another lease it may
        have been another load."""
        self._token: int | None = None
        """The lease's token when `_loading_since_s` was last cleared."""
        self._dead: set[str] = set()
        """Models whose stubs have died: if one of these is UNLOADING it holds no memory, whatever Triton
        says."""

    async def load(self, model: ModelFacts, victims: Sequence[str] = ()) -> None:
        """Unload `victims`, load `model`, and return when it is ready; waits for the plan under way.

        If the caller is cancelled, what was begun goes on in Triton, and the next plan finds it there.

        Raises:
            Overloaded: the model does not fit, and nothing was done; or it does not fit any more; or the requests or
                the load of another take too long.
            ModelLoadFailed: Triton says so, or the model is gone after its load.
            DeadlineExceeded: its load, or its own requests, which must finish first, take too long.
            UpstreamUnavailable: no Triton, or this process is not the fleet's leader (any more).
        """
        async with self._turn:
            self._require_lease()
            # The plan is made from the index as it is now, whatever earlier plans intended.
            for step in plan(await self._read_index(), model, victims):
                await self._carry_out(step, model.name)
            _require_ready(await self._read_index(), model.name)

    async def repair(self, model: ModelFacts, dead: str, *, parts: Collection[str] = ()) -> None:
        """Unload and load a model whose stub, or that of `dead`, one of its `parts`, has died. Raises as
        `load`.

        Triton never gives such a model up (24.10: a request that met the dead process keeps it UNLOADING for
        ever), but it does not have its memory either. Memory of a model's surviving instances is not counted
        until the server's memory is measured again.
        """
        self._dead |= {model.name, *parts}
        try:
            if dead != model.name:
                # Not left to the ensemble's unload, which spares a step that other ensembles need.
                await self._unload(dead)
            await self.load(model, (model.name,))
        finally:
            self._dead -= {model.name, *parts}

    async def unload(self, name: str) -> None:
        """Unload a model after its requests have finished, and return when its memory is free; one that is
        not there is ignored. Raises as `load`."""
        async with self._turn:
            if name in (await self._read_index()).replicas:
                # Triton 24.10 hangs in an unload of a model whose load does not end.
                await self._await_ready(name)
                await self._unload(name)
                await self._await_released(name)

    async def _carry_out(self, step: Step, model: str) -> None:
        """Carry out a step of a plan that loads this model."""
        match step:
            case Unload(name):
                await self._unload(name)
            case Load():
                await self._load(step)
            case AwaitReleased(name) | AwaitReady(name):
                try:
                    await (self._await_released(name) if isinstance(step, AwaitReleased) else self._await_ready(name))
                except DeadlineExceeded as exc:
                    if name == model:
                        raise
                    raise Overloaded(str(exc)) from exc  # no fault of the model that is to be loaded
            case _:
                assert_never(step)

    async def _load(self, step: Load) -> None:
        """Load the step's model, after waiting for its turn in Triton."""
        try:
            async with self._models.prepared(step.name) as prepared:
                token = None
                # Repeated if the lease was lost and won again meanwhile: the index must have been read under
                # the lease that allows the call.
                while (present := self._require_lease()) != token:
                    token = present
                    await self._await_turn_in_triton(step)
                # From here the call may reach Triton even if its answer never comes back, so its memory
                # counts.
                self._begun[step.name] = self._loading_since_s[step.name] = self._now_s()
                await prepared.load()
        # Triton has answered: the load is over. Reading the index lets the view see that at once.
        except ModelLoadFailed:
            self._begun.pop(step.name, None)
            with suppress(ControlPlaneError):
                await self._read_index()
            raise
        self._begun.pop(step.name, None)

    async def _await_turn_in_triton(self, step: Load) -> None:
        """Wait until nothing else loads there. Raises Overloaded: that takes too long; or the server has filled meanwhile, and
        the model does not fit any more."""
        try:
            seen = await self._poll(lambda found: not self._must_wait(found, step.name), self._limits.load_timeout_s, "other loads to end")
        except DeadlineExceeded as exc:
            raise Overloaded(str(exc)) from exc
        if step.name in seen.replicas:
            return
        # Another server may have shown since the plan was made that the model is larger.
        size = max(step.bytes, self._bytes_of(step.name))
        missing = held_bytes(seen.replicas.values()) + size - seen.budget_bytes
        if missing > 0:
            raise Overloaded(f"model '{step.name}' does not fit on server '{seen.name}' any more: {missing} bytes are missing")

    def _must_wait(self, found: Server, name: str) -> bool:
        """Whether a load of this model must wait: another load is under way, or a replica of the model is unloading, beside
        which Triton would load the new one at once."""
        own = found.replicas.get(name)
        if own is not None and own.state is ModelState.UNLOADING:
            return True
        return any(replica.state is ModelState.LOADING and not self._hangs(replica.model) for replica in found.replicas.values())

    def _hangs(self, name: str) -> bool:
        """Whether the model's load has taken longer than a load may."""
        return self._now_s() - self._loading_since_s.get(name, self._now_s()) > self._limits.load_timeout_s

    async def _unload(self, name: str) -> None:
        self._require_lease()
        await self._models.begin_unload(name)

    async def _await_released(self, name: str) -> None:
        await self._poll(lambda found: name not in found.replicas, self._limits.release_timeout_s, f"'{name}' to be released")

    async def _await_ready(self, name: str) -> None:
        """Wait until a model's load has ended, or hangs."""

        def has_ended(found: Server) -> bool:
            return name not in found.replicas or found.replicas[name].state is not ModelState.LOADING or self._hangs(name)

        await self._poll(has_ended, 2 * self._limits.load_timeout_s, f"the load of '{name}' to end")

    def _require_lease(self) -> int:
        """Return the lease's token, or raise if this process is not the leader; under a new lease observed
        load times start anew."""
        token = self._require()
        if token != self._token:
            self._token = token
            self._loading_since_s.clear()
        return token

    async def _poll(self, condition: Callable[[Server], bool], timeout_s: float, what: str) -> Server:
        """Read the index until `condition` holds. Raises DeadlineExceeded."""
        deadline_s = self._now_s() + timeout_s
        pause_s = self._limits.first_poll_s
        while not condition(found := await self._read_index()):
            if self._now_s() > deadline_s:
                raise DeadlineExceeded(f"server '{self._server.name}': waited {timeout_s:g} s for {what}")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, self._limits.max_poll_s)
        return found

    async def _read_index(self) -> Server:
        """Read the server's index; the result includes loads that are still on their way there."""
        asked_s = self._now_s()
        try:
            index = await self._control.index()
        except DeadlineExceeded as exc:  # it may be frozen, which is no fault of the model's that is to be loaded
            raise UpstreamUnavailable(f"server '{self._server.name}' does not list its models: {exc}") from exc
        self._on_index(index)
        now_s = self._now_s()
        replicas = replicas_of(index, self._bytes_of, now_s)
        # A dead stub's memory is free, although Triton lists the model as UNLOADING for ever.
        for name in [name for name in self._dead & replicas.keys() if replicas[name].state is ModelState.UNLOADING]:
            del replicas[name]
        # A begun load is in the index now, or it never reached Triton: this index was asked for long enough
        # after it began.
        for name in [
            name for name, begun_s in self._begun.items() if name in replicas or asked_s - begun_s > self._limits.call_visible_after_s
        ]:
            del self._begun[name]
        for name in self._begun:
            replicas[name] = Replica(name, ModelState.LOADING, self._bytes_of(name), now_s)
        loading = [replica.model for replica in replicas.values() if replica.state is ModelState.LOADING]
        # Forgets loads that have ended, so that a later load of the model is timed from its own beginning.
        self._loading_since_s = {name: self._loading_since_s.get(name, now_s) for name in loading}
        return replace(self._server, replicas=replicas)


def _require_ready(seen: Server, name: str) -> None:
    replica = seen.replicas.get(name)
    if replica is None or replica.state is ModelState.UNLOADING:
        raise ModelLoadFailed(f"model '{name}' is not on server '{seen.name}' after its load has ended: it failed, or somebody unloaded it")
    if replica.state is ModelState.LOADING:
        raise DeadlineExceeded(f"the load of model '{name}' on server '{seen.name}' hangs")
