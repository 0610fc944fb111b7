"""What is loaded into one server of a fleet and out of it: `residency.Plans`, over all lives of its Triton."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from control_plane.core.errors import ControlPlaneError
from control_plane.core.model import ModelVersion
from control_plane.fleet.domain.fleet import ModelFacts
from control_plane.fleet.loading.load_plans import Begin, LoadPlans, PlanLimits
from control_plane.fleet.view.state import FleetState
from control_plane.models.domain.description import Tier
from control_plane.models.model_service import ModelService
from control_plane.triton.ports import Upstream
from control_plane.triton.servers import Member

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
        self._unloading: dict[str, tuple[float, int]] = {}
        """Since when, and how large."""
        self._upstream: Upstream | None = None
        self._plans: LoadPlans | None = None

    async def bring_in(self, model: ModelFacts, victims: Sequence[str]) -> None:
        """Unload the victims, wait for their memory, load the model. Raises as `LoadPlans.load`."""
        with self._settling(model.name):
            await self._now().load(model, victims, load=self._load)
        await self.look()

    async def revive(self, model: ModelFacts) -> None:
        """Unload and load one whose process has died. Raises as `LoadPlans.revive`."""
        with self._settling(model.name):
            await self._now().revive(model, parts=self._state.steps_of(model.name), load=self._load)
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
        self._observe(await self._member.pick().control.index())

    def _observe(self, index: list[ModelVersion]) -> None:
        name = self._member.name
        self._state.observe(name, index)
        server = self._state.fleet.servers.get(name)
        for model in self._unloading.keys() - server.copies.keys() if server is not None else ():  # it may have left meanwhile
            since_s, size = self._unloading.pop(model)
            took_s = self._state.now_s() - since_s
            self._state.counts.moved(model, source=Tier.HOT, target=Tier.WARM, size_bytes=size, took_s=took_s)

    async def weigh(self) -> None:
        """Correct what models are taken to hold by what the server does: with their first requests many grow."""
        held = await asyncio.to_thread(self._resident_bytes)
        if held is not None and self._empty_bytes is not None and self._member.is_up:
            self._state.measurements.weighed(self._member.name, held - self._empty_bytes)
        if held is None:
            await self._ask_for_sizes()

    async def _ask_for_sizes(self) -> None:
        """Of a Triton whose memory cannot be read here; some backends report them."""
        try:
            sizes = await self._member.pick().control.memory_bytes()
        except ControlPlaneError as exc:
            _log.debug("server %s tells no sizes: %s", self._member.name, exc)  # it is down, which others say aloud
        else:
            self._state.measurements.told(sizes)

    @contextmanager
    def _settling(self, model: str) -> Iterator[None]:
        settling = (self._member.name, model)
        self._state.settling.add(settling)
        try:
            yield
        finally:
            self._state.settling.discard(settling)

    def _now(self) -> LoadPlans:
        upstream = self._member.pick()
        if self._plans is None or self._upstream is not upstream:
            name = self._member.name
            self._upstream, self._empty_bytes = upstream, None
            self._unloading.clear()
            self._plans = LoadPlans(
                self._state.fleet.servers[name],
                upstream.control,
                require=self._require,
                bytes_of=lambda model: self._state.bytes_of(name, model),
                on_index=self._observe,
                unload=self._unload,
                limits=self._limits,
            )
        return self._plans

    async def _load(self, model: str, begin: Begin) -> None:
        before: int | None = None
        began_s, has_begun = self._state.now_s(), False

        async def begin_now() -> None:
            nonlocal before, began_s, has_begun
            before = await asyncio.to_thread(self._resident_bytes)
            if self._state.is_empty(self._member.name):
                self._empty_bytes = before
            await begin()
            began_s, has_begun = self._state.now_s(), True

        try:
            await self._models.load(model, begin=begin_now)
        except ControlPlaneError:
            if has_begun:
                self._state.counts.move_failed(model, source=Tier.WARM, target=Tier.HOT)
            raise
        took_s = self._state.now_s() - began_s
        after = await asyncio.to_thread(self._resident_bytes)
        more = None if before is None or after is None else after - before
        self._state.measurements.loaded(model, took_s, more)
        size = self._state.bytes_of(self._member.name, model)
        self._state.counts.moved(model, source=Tier.WARM, target=Tier.HOT, size_bytes=size, took_s=took_s)

    async def _unload(self, model: str) -> None:
        self._unloading[model] = (self._state.now_s(), self._state.bytes_of(self._member.name, model))
        await self._models.unload(model, unload_dependents=self._state.steps_are_its_own(self._member.name, model))
