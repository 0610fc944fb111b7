"""What is loaded into one server of a fleet and out of it: `residency.Plans`, over all lives of its Triton."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from control_plane.domain.fleet import ModelFacts
from control_plane.ports import Upstream
from control_plane.services.fleet_state import FleetState
from control_plane.services.load_plans import Begin, LoadPlans, PlanLimits
from control_plane.services.models import ModelService
from control_plane.services.servers import Member

_log = logging.getLogger(__name__)


class ServerLoads:
    """Keeps the fleet's picture of this server true while it does."""

    def __init__(
        self,
        member: Member,
        models: ModelService,
        state: FleetState,
        *,
        require: Callable[[], int],
        resident_bytes: Callable[[], int | None] = lambda: None,
        load_timeout_s: float,
    ) -> None:
        """`require` is `Ownership.require`; `resident_bytes` is what the server holds in memory now, where that can be told."""
        self._member = member
        self._models = models
        self._state = state
        self._require = require
        self._resident_bytes = resident_bytes
        self._limits = PlanLimits(load_timeout_s=load_timeout_s)
        self._empty_bytes: int | None = None
        """What the server holds without any model; None until that has been seen in this life."""
        self._upstream: Upstream | None = None
        self._plans: LoadPlans | None = None

    async def bring_in(self, model: ModelFacts, victims: Sequence[str]) -> None:
        """Unload the victims, wait for their memory, load the model. Raises as `LoadPlans.load`."""
        settling = (self._member.name, model.name)
        self._state.settling.add(settling)
        try:
            await self._now().load(model, victims, load=self._load)
        finally:
            self._state.settling.discard(settling)
        await self.look()

    async def reload(self, model: ModelFacts) -> None:
        """Load it anew beside itself, which Triton puts in its place when it is ready. Raises ControlPlaneError."""

        async def begin() -> None:
            self._require()  # after all that is prepared, which takes a while

        await self._models.load(model.name, begin=begin)
        await self.look()

    async def take_out(self, model: str) -> None:
        """Unload it, and wait for its memory. Raises as `LoadPlans.unload`."""
        await self._now().unload(model)
        await self.look()

    async def look(self) -> None:
        """Bring the picture in line with Triton. Raises UpstreamUnavailable, UpstreamFailed."""
        self._state.observe(self._member.name, await self._member.pick().control.index())

    async def weigh(self) -> None:
        """Correct what models are taken to hold by what the server does: with their first requests many grow."""
        held = await asyncio.to_thread(self._resident_bytes)
        if held is not None and self._empty_bytes is not None and self._member.is_up:
            self._state.weighed(self._member.name, held - self._empty_bytes)

    def _now(self) -> LoadPlans:
        upstream = self._member.pick()
        if self._plans is None or self._upstream is not upstream:
            name = self._member.name
            self._upstream, self._empty_bytes = upstream, None
            self._plans = LoadPlans(
                self._state.fleet.servers[name],
                upstream.control,
                require=self._require,
                bytes_of=lambda model: self._state.bytes_of(name, model),
                on_index=lambda index: self._state.observe(name, index),
                unload=self._unload,
                limits=self._limits,
            )
        return self._plans

    async def _load(self, model: str, begin: Begin) -> None:
        before: int | None = None
        began_s = self._state.now_s()

        async def begin_now() -> None:
            nonlocal before, began_s
            before = await asyncio.to_thread(self._resident_bytes)
            if self._state.is_empty(self._member.name):
                self._empty_bytes = before
            await begin()
            began_s = self._state.now_s()

        await self._models.load(model, begin=begin_now)
        took_s = self._state.now_s() - began_s
        after = await asyncio.to_thread(self._resident_bytes)
        more = None if before is None or after is None else after - before
        self._state.loaded(model, took_s, more)

    async def _unload(self, model: str) -> None:
        await self._models.unload(model, unload_dependents=self._state.steps_are_its_own(self._member.name, model))
