"""Loads and unloads on one server of a fleet, across restarts of its Triton. It implements `server_turns.ServerLoader`, and
`load_plans.ServerModels` for its plans.

It measures how long loads take, and how much memory models hold.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

from control_plane.core.errors import ControlPlaneError
from control_plane.core.held_memory import HeldMemory
from control_plane.core.model import ModelVersion
from control_plane.fleet.domain.fleet import ModelFacts
from control_plane.fleet.loading.load_plans import LoadPlans, PlanLimits
from control_plane.fleet.ports import PreparedLoad, ServerInstance
from control_plane.fleet.view.state import FleetState
from control_plane.host.boot_clock import boot_time_s
from control_plane.models.domain.description import Tier
from control_plane.triton.ports import Upstream
from control_plane.triton.server_state import ServerState

_log = logging.getLogger(__name__)


class ServerLoads:
    """Loader of one server, which also keeps the fleet's view of that server in line with its index."""

    def __init__(
        self,
        member: ServerState,
        instance: ServerInstance,
        state: FleetState,
        *,
        require: Callable[[], int],
        load_timeout_s: float,
        now_s: Callable[[], float] = boot_time_s,
    ) -> None:
        """`require` is `LeaderElection.require`, and `now_s` the clock of plans, which runs on while the machine sleeps."""
        self._member = member
        self._instance = instance
        self._state = state
        self._require = require
        self._limits = PlanLimits(load_timeout_s=load_timeout_s)
        self._now_s = now_s
        self._empty: HeldMemory | None = None
        """Memory of the server without any model; None until it has been read in this life of Triton."""
        self._unloading: dict[str, tuple[float, int]] = {}
        """Model -> since when it has been unloading, and its size."""
        self._upstream: Upstream | None = None
        self._plans: LoadPlans | None = None

    async def load_after_evicting(self, model: ModelFacts, victims: Sequence[str]) -> None:
        """Unload the victims, wait for their memory, and load the model. Raises as `LoadPlans.load`."""
        with self._awaiting_fingerprint(model.name):
            await self._plans_of_this_life().load(model, victims)
        await self.poll_index()

    async def repair(self, model: ModelFacts, dead: str) -> None:
        """Unload and load a model whose stub, or that of its step `dead`, has died. Raises as
        `LoadPlans.repair`."""
        parts, is_own = self._state.specs.steps_of(model.name), self._state.specs.steps_are_its_own(self._member.name, model.name)
        # Stubs of other steps that others need as well serve on.
        async with self._instance.replacing({model.name, dead, *(parts if is_own else ())}):
            with self._awaiting_fingerprint(model.name):
                await self._plans_of_this_life().repair(model, dead, parts=parts)
        await self.poll_index()

    async def reload(self, model: ModelFacts) -> None:
        """Load a model anew beside itself; Triton replaces the old one when the new one is ready. Raises
        ControlPlaneError."""
        async with self._instance.prepared(model.name) as prepared:
            self._require()  # not before the preparation, which takes a while: the lease could expire in it
            await prepared.load()
        await self.poll_index()

    async def unload(self, model: str) -> None:
        """Unload a model, and wait for its memory. Raises as `LoadPlans.unload`."""
        await self._plans_of_this_life().unload(model)
        await self.poll_index()

    async def poll_index(self) -> None:
        """Read the server's index into the fleet's view. Raises UpstreamUnavailable, UpstreamFailed."""
        self.observe(await self._member.ask(lambda upstream: upstream.control.index()))

    def observe(self, index: list[ModelVersion]) -> None:
        """Pass an index on to the view, and record the unloads that it shows to be complete."""
        name = self._member.name
        self._state.observe(name, index)
        # The server may have left the fleet while its index was read.
        server = self._state.fleet.servers.get(name)
        for model in self._unloading.keys() - server.replicas.keys() if server is not None else ():
            since_s, size = self._unloading.pop(model)
            took_s = self._state.now_s() - since_s
            self._state.counts.moved(model, source=Tier.HOT, target=Tier.WARM, size_bytes=size, took_s=took_s)

    async def measure_memory(self) -> None:
        """Measure the memory of all models on the server, and correct their sizes: many models grow with
        their first requests."""
        held = await self._instance.held_memory()
        if held is not None and self._empty is not None and self._member.is_up and (more := held.more_than(self._empty)) is not None:
            self._state.measurements.memory_measured(self._member.name, more)
        # An attached Triton's memory cannot be read from here: it is asked itself.
        if held is None:
            await self._ask_for_sizes()

    async def _ask_for_sizes(self) -> None:
        """Ask a Triton whose memory cannot be read here; some backends report the sizes of their models."""
        try:
            sizes = await self._member.ask(lambda upstream: upstream.control.memory_bytes())
        except ControlPlaneError as exc:
            # Not a warning: the server is down, and that is logged elsewhere.
            _log.debug("server %s reports no model sizes: %s", self._member.name, exc)
        else:
            self._state.measurements.note_reported_sizes(sizes)

    @contextmanager
    def _awaiting_fingerprint(self, model: str) -> Iterator[None]:
        """Keep a model LOADING in the view for as long as the block lasts, even once Triton says READY (see
        `FleetState.awaiting_fingerprint`)."""
        key = (self._member.name, model)
        self._state.awaiting_fingerprint.add(key)
        try:
            yield
        finally:
            self._state.awaiting_fingerprint.discard(key)

    def _plans_of_this_life(self) -> LoadPlans:
        """Return the plans for the Triton process that lives now. Raises UpstreamUnavailable."""
        upstream = self._member.pick()
        if self._plans is None or self._upstream is not upstream:
            name = self._member.name
            # A new Triton process is empty: nothing that was learned of the old one's memory and calls holds.
            self._upstream, self._empty = upstream, None
            self._unloading.clear()
            self._plans = LoadPlans(
                self._state.fleet.servers[name],
                upstream.control,
                self,
                require=self._require,
                bytes_of=lambda model: self._state.bytes_of(name, model),
                on_index=self.observe,
                limits=self._limits,
                now_s=self._now_s,
            )
        return self._plans

    # `load_plans.ServerModels`

    @asynccontextmanager
    async def prepared(self, model: str) -> AsyncIterator[PreparedLoad]:
        """Prepare a load by the server's model service, and measure the time and memory that it takes."""
        async with self._instance.prepared(model) as prepared:
            before = await self._instance.held_memory()
            # The only moment when the memory of the empty server can be read: before its first load begins.
            if self._state.is_empty(self._member.name):
                self._empty = before
            try:
                yield prepared
            except ControlPlaneError:
                if prepared.asked_s is not None:
                    self._state.counts.move_failed(model, source=Tier.WARM, target=Tier.HOT)
                raise
        if prepared.asked_s is not None:
            await self._learn(model, self._state.now_s() - prepared.asked_s, before)

    async def _learn(self, model: str, took_s: float, before: HeldMemory | None) -> None:
        """Note the time and memory that a load took; `before` is the memory that the server held before it."""
        after = await self._instance.held_memory()
        more = None if before is None or after is None else after.more_than(before)
        self._state.measurements.loaded(model, took_s, more)
        size = self._state.bytes_of(self._member.name, model)
        self._state.counts.moved(model, source=Tier.WARM, target=Tier.HOT, size_bytes=size, took_s=took_s)

    async def begin_unload(self, model: str) -> None:
        """Have Triton accept an unload, and note when it was asked."""
        self._unloading[model] = (self._state.now_s(), self._state.bytes_of(self._member.name, model))
        await self._instance.unload_now(model, unload_dependents=self._state.specs.steps_are_its_own(self._member.name, model))
