"""Brings models into one server and out of it by the plans of `fleet/domain/load_plan`, one at a time; it is told which by
`fleet/routing/residency`.

Nothing is remembered from one plan to the next but calls whose answer never came. Right before each load Triton's index is read: while it
shows another load, whoever began it, that is waited for, and only what fits beside all that is not surely gone begins. Then, without
any wait between, `Ownership.require` has the last word. So it is safe to be cancelled, to fail and to be taken over from anywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import assert_never

from control_plane.core.errors import ControlPlaneError, DeadlineExceeded, ModelLoadFailed, Overloaded, UpstreamUnavailable
from control_plane.core.model import ModelState, ModelVersion
from control_plane.fleet.domain.fleet import Copy, ModelFacts, Server
from control_plane.fleet.domain.load_plan import AwaitReady, AwaitReleased, Load, Step, Unload, copies_of, held_bytes, plan
from control_plane.fleet.ownership.ownership import boot_time_s
from control_plane.triton.ports import ModelControl

Begin = Callable[[], Awaitable[None]]
LoadModel = Callable[[str, Begin], Awaitable[None]]
"""Loads a model, and returns when it is ready. It awaits the second argument when all is prepared, right before it asks Triton."""


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """How long plans wait, in seconds."""

    load_timeout_s: float = 300.0
    """A load that takes longer hangs, and holds up no others; what it may have taken counts until its line in the index is gone."""

    release_timeout_s: float = 60.0
    """For requests in flight, which Triton lets finish: no longer than these may take."""

    unload_timeout_s: float = 10.0
    """Triton accepts an unload within milliseconds."""

    first_poll_s: float = 0.05
    """Most models are gone within this time; a look at the index costs Triton about a millisecond."""

    max_poll_s: float = 0.5

    settle_s: float = 2.0
    """A call that was begun and not answered has reached Triton's index by then, or never will: twice the lease's margin."""


class LoadPlans:
    """Carries out load plans on one server, for as long as one Triton lives there."""

    def __init__(
        self,
        server: Server,
        control: ModelControl,
        *,
        require: Callable[[], int],
        bytes_of: Callable[[str], int],
        on_index: Callable[[list[ModelVersion]], None] = lambda index: None,
        unload: Callable[[str], Awaitable[None]] | None = None,
        limits: PlanLimits | None = None,
        now_s: Callable[[], float] = boot_time_s,
    ) -> None:
        """Of `server` only name and budget count: what is on it comes from the index, and `bytes_of` every model that is found there.

        `require` is `Ownership.require`; `on_index` hears every index that is read, which keeps the fleet's picture fresh. `unload`
        returns when Triton has accepted it.
        """
        self._server = server
        self._control = control
        self._require = require
        self._bytes_of = bytes_of
        self._on_index = on_index
        self._unload_model = unload or self._unload_plainly
        self._limits = limits or PlanLimits()
        self._now_s = now_s
        self._turn = asyncio.Lock()
        self._begun: dict[str, float] = {}
        """Loads that were begun and neither answered nor seen in the index, and when."""
        self._loading_since_s: dict[str, float] = {}
        """Loads under way, and when they began or were first seen in this lease's time: in another's each may have been a later one."""
        self._token: int | None = None
        self._dead: set[str] = set()
        """Models whose processes have died: what of them is UNLOADING holds no memory, whatever Triton says."""

    async def load(self, model: ModelFacts, victims: Sequence[str] = (), *, load: LoadModel) -> None:
        """Unload `victims`, load `model`; return when it is ready. Waits for the plan that is under way.

        Cancelled, what was begun goes on in Triton, and the next plan finds it there.

        Raises:
            Overloaded: it does not fit, and nothing was done; or it does not fit any more.
            ModelLoadFailed: as Triton says. DeadlineExceeded: a load, or requests that must finish first, take too long.
            UpstreamUnavailable: no Triton, or this process is not the fleet's owner (any more).
        """
        async with self._turn:
            self._ask_leave()
            for step in plan(await self._look(), model, victims):
                await self._carry_out(step, load)
            _require_ready(await self._look(), model.name)

    async def revive(self, model: ModelFacts, *, parts: Collection[str] = (), load: LoadModel) -> None:
        """Unload and load a model whose process, or one of its `parts`, has died; raises as `load`.

        Such a one Triton never gives up (24.10: a request that met the dead process keeps it UNLOADING for ever), but nor does it have
        its memory. Of several instances those that live on are held by Triton and by nobody counted, until the server is weighed.
        """
        self._dead |= {model.name, *parts}
        try:
            await self.load(model, (model.name,), load=load)
        finally:
            self._dead -= {model.name, *parts}

    async def unload(self, name: str) -> None:
        """Return when its memory is free; its requests finish first. Nothing is done for one that is not there. Raises as `load`."""
        async with self._turn:
            if name in (await self._look()).copies:
                await self._await_ready(name)
                await self._unload(name)
                await self._await_released(name)

    async def _carry_out(self, step: Step, load: LoadModel) -> None:
        match step:
            case Unload(name):
                await self._unload(name)
            case AwaitReleased(name):
                await self._await_released(name)
            case Load():
                await self._load(step, load)
            case AwaitReady(name):
                await self._await_ready(name)
            case _:
                assert_never(step)

    async def _load(self, step: Load, load: LoadModel) -> None:
        is_over = False

        async def begin() -> None:
            token = None
            while token != (token := self._ask_leave()):  # the index is of this lease's time, not of before another's
                await self._await_turn_in_triton(step)
            if is_over:  # it was cancelled while a task of somebody else's prepared the load: the next plan may be under way
                raise UpstreamUnavailable(f"the load of model '{step.name}' was given up before it began")
            self._begun[step.name] = self._loading_since_s[step.name] = self._now_s()

        try:
            await load(step.name, begin)
        except ModelLoadFailed:
            self._begun.pop(step.name, None)
            with suppress(ControlPlaneError):
                await self._look()
            raise
        finally:
            is_over = True
        self._begun.pop(step.name, None)

    async def _await_turn_in_triton(self, step: Load) -> None:
        """Until nothing else loads there. Raises Overloaded: something has come meanwhile, and it does not fit any more."""
        seen = await self._poll(lambda found: not self._in_the_way(found, step.name), self._limits.load_timeout_s, "other loads to end")
        if step.name in seen.copies:
            return
        size = max(step.bytes, self._bytes_of(step.name))  # it may have been found to be larger since the plan was made
        missing = held_bytes(seen.copies.values()) + size - seen.budget_bytes
        if missing > 0:
            raise Overloaded(f"model '{step.name}' does not fit on server '{seen.name}' any more: {missing} bytes are missing")

    def _in_the_way(self, found: Server, name: str) -> bool:
        """A load, or the copy of this model that leaves: Triton would load another beside it at once."""
        return any(copy.state is ModelState.LOADING and not self._hangs(copy.model) for copy in found.copies.values()) or (
            name in found.copies and found.copies[name].state is ModelState.UNLOADING
        )

    def _hangs(self, name: str) -> bool:
        return self._now_s() - self._loading_since_s.get(name, self._now_s()) > self._limits.load_timeout_s

    async def _unload(self, name: str) -> None:
        self._ask_leave()
        await self._unload_model(name)

    async def _unload_plainly(self, name: str) -> None:
        await self._control.unload(name, timeout_s=self._limits.unload_timeout_s)

    async def _await_released(self, name: str) -> None:
        await self._poll(lambda found: name not in found.copies, self._limits.release_timeout_s, f"'{name}' to be released")

    async def _await_ready(self, name: str) -> None:
        """Until its load has ended, or is given up as one that hangs."""

        def has_ended(found: Server) -> bool:
            return name not in found.copies or found.copies[name].state is not ModelState.LOADING or self._hangs(name)

        await self._poll(has_ended, 2 * self._limits.load_timeout_s, f"the load of '{name}' to end")

    def _ask_leave(self) -> int:
        token = self._require()
        if token != self._token:
            self._token = token
            self._loading_since_s.clear()
        return token

    async def _poll(self, is_so: Callable[[Server], bool], timeout_s: float, what: str) -> Server:
        deadline_s = self._now_s() + timeout_s
        pause_s = self._limits.first_poll_s
        while not is_so(found := await self._look()):
            if self._now_s() > deadline_s:
                raise DeadlineExceeded(f"server '{self._server.name}': waited {timeout_s:g} s for {what}")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, self._limits.max_poll_s)
        return found

    async def _look(self) -> Server:
        """The server by its index, with the loads that are on their way there."""
        asked_s = self._now_s()
        index = await self._control.index()
        self._on_index(index)
        now_s = self._now_s()
        copies = copies_of(index, self._bytes_of, now_s)
        for name in [name for name in self._dead & copies.keys() if copies[name].state is ModelState.UNLOADING]:
            del copies[name]
        for name in [name for name, begun_s in self._begun.items() if name in copies or asked_s - begun_s > self._limits.settle_s]:
            del self._begun[name]
        for name in self._begun:
            copies[name] = Copy(name, ModelState.LOADING, self._bytes_of(name), now_s)
        loading = [copy.model for copy in copies.values() if copy.state is ModelState.LOADING]
        self._loading_since_s = {name: self._loading_since_s.get(name, now_s) for name in loading}
        return replace(self._server, copies=copies)


def _require_ready(seen: Server, name: str) -> None:
    copy = seen.copies.get(name)
    if copy is None or copy.state is ModelState.UNLOADING:
        raise ModelLoadFailed(f"model '{name}' is not on server '{seen.name}' after its load has ended: it failed, or somebody unloaded it")
    if copy.state is ModelState.LOADING:
        raise DeadlineExceeded(f"the load of model '{name}' on server '{seen.name}' hangs")
