"""The models of a fleet as its administrators see them: where they are, and loading and unloading them everywhere.

Stands where `models/model_service` stands for one Triton. `load` pins a model, so that it stays; `unload` takes it from all servers, and it
is not loaded again before somebody asks for that; `release` takes back either. All hold for all gateways of the fleet and after restarts
(`fleet/view/memory`), whichever was told: the fleet's owner carries out what others were, and says what came of it.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from uuid import uuid4

from control_plane.core.errors import Conflict, ControlPlaneError, ModelLoadFailed, ModelNotFound, NotSupported, Overloaded
from control_plane.core.model import Model, ModelOverride, ModelState, ModelVersion, ServedVariant, summarise
from control_plane.fleet.domain.event import FleetEventKind
from control_plane.fleet.domain.fleet import Copy, ModelFacts
from control_plane.fleet.domain.memory import Wish
from control_plane.fleet.routing.residency import Residency
from control_plane.fleet.view.catalogue import asked_of_all, best_lines
from control_plane.fleet.view.memory import Remembering
from control_plane.fleet.view.state import FleetState
from control_plane.models.served_variants import served_variants
from control_plane.triton.servers import Servers
from control_plane.triton.triton_log import brief

_log = logging.getLogger(__name__)

_GONE = Wish(min_copies=0, is_withdrawn=True)
_UNLOADED = "an administrator asked for it"
_LATER_S = 5.0
"""After the owner has refused: it may have room then, or another model may be unloaded."""
_NAMED = 3
_TO_END_S = 15.0
"""A load that has taken as long as it may is given up by its server by then, and has said why."""
_ANSWER_S = 2.0
"""For the owner to see what it is asked, and the answer to come back."""


class FleetModels:
    """`models/ports.ModelAdministration`, and the list of models."""

    def __init__(
        self, *, state: FleetState, servers: Servers, residency: Residency, remembering: Remembering, load_timeout_s: float
    ) -> None:
        self._state = state
        self._servers = servers
        self._residency = residency
        self._remembering = remembering
        self._load_timeout_s = load_timeout_s
        self._changing: set[str] = set()
        """Models that this process loads or unloads since somebody asked for it."""

    async def run(self) -> None:
        """Where this process is the owner, carry out what administrators have told others, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._remembering.wait_for_turn()
                for name, wish in self._state.wishes.items() if self._remembering.is_owner() else ():
                    if name not in self._changing and self._remembering.is_pending(name, wish):
                        self._changing.add(name)
                        tasks.create_task(self._carry_out(name, wish), name=f"wish-for-{name}")
                    elif name not in self._changing and wish.is_withdrawn:
                        self._let_go(name)

    async def list_models(self) -> list[Model]:
        """Every model of the repositories and of the servers, by name. Raises UpstreamUnavailable: no server is up, or none answers."""
        self._servers.pick()
        indexes = await asked_of_all(list(self._servers.live.values()), lambda server: server.control.index())
        index = best_lines([line for each in indexes for line in each])
        told = await asyncio.gather(*(served_variants(server) for server in self._servers.live.values()))
        variants = {model: variant for each in told for model, variant in each.items()}
        names = {line.name for line in index} | set(self._state.described)
        return [self._model(name, index, variants.get(name)) for name in sorted(names)]

    async def get(self, name: str) -> Model:
        """One model. Raises ModelNotFound, UpstreamUnavailable."""
        for model in await self.list_models():
            if model.name == name:
                return model
        raise ModelNotFound(f"no model '{name}' in any repository; `tidegate models list` shows the ones there are")

    async def load(self, name: str, override: ModelOverride | None = None) -> None:
        """Load it where it fits best and keep it loaded; where it is loaded already, load it anew, on one server after the other.

        Raises:
            ModelNotFound, ModelLoadFailed, DeadlineExceeded, UpstreamUnavailable. Overloaded: there is no room for it. NotSupported: a
                load that brings something along. StoreUnavailable: nobody was told that it is to stay.
        """
        if override is not None:  # evicted, it would come back without
            raise NotSupported("a fleet loads models as their folders have them; change the folder, or serve it by one Triton of its own")
        self._facts(name)
        if self._remembering.is_owner():
            await self._remembering.change_wish(name, lambda before: Wish() if before.is_withdrawn else before)
            await self._load_here(name)
        else:
            await self._have_it_done(name, is_withdrawn=False)
        await self._remembering.change_wish(name, lambda before: self._pinned(name, before))

    async def load_anew(self, built: str) -> None:
        """Load copies again that are made of this model, whose files are new, on one server after the other; what fails is logged."""
        for name in [name for name in self._state.described if built == name or built in self._state.steps_of(name)]:
            self._residency.loads.forgive(name)
            for server in self._ready_on(name):
                if self._state.fleet.servers[server].copies[name].is_step:
                    continue  # its ensemble brings it
                try:
                    await self._residency.loads.reload(name, server, reason=f"{built} was built anew")
                except ControlPlaneError as exc:
                    _log.warning("what has been built is not served by %s: %s", server, exc, extra={"model": name})

    async def keep(self, name: str, *, waits_for_room: bool = True) -> None:
        """Have it loaded while this process runs, as it was started to, unless an administrator has unloaded it. Raises as `load`."""
        self._facts(name)
        if self._state.is_withdrawn(name):
            _log.info("model stays unloaded, as an administrator said; `tidegate models load` has it loaded again", extra={"model": name})
            return
        if self._remembering.is_owner():
            self._residency.loads.forgive(name)  # what was wrong may have been put right for this start
        if not self._state.fleet.ready_copies(name):  # from a life of this gateway before, or another's
            await self._bring(name, waits_for_room=waits_for_room)
        self._state.pin(name, 1)

    async def release(self, name: str) -> None:
        """What administrators have said of it holds no longer: it is loaded and evicted as its requests want it, and kept if its folder or
        the command line says so. Raises ModelNotFound; StoreUnavailable: nobody was told."""
        if name not in self._state.wishes:
            self._facts(name)
        await self._remembering.wish(name, None)

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Take it from every server; requests in flight finish.

        Raises:
            DeadlineExceeded, UpstreamUnavailable. StoreUnavailable: nobody was told.
        """
        if name not in self._state.fleet.models and name not in self._state.fleet.holders:
            return
        if self._remembering.is_owner():
            await self._remembering.wish(name, _GONE)
            await self._unload_here(name)
        else:
            await self._have_it_done(name, is_withdrawn=True)

    # Who is not the owner

    async def _have_it_done(self, name: str, *, is_withdrawn: bool) -> None:
        """Also what somebody else has asked for, if it is the same and not done yet."""

        def asked(before: Wish) -> Wish:
            if before.is_withdrawn == is_withdrawn and self._remembering.is_pending(name, before):
                return before
            return replace(_GONE if is_withdrawn else Wish() if before.is_withdrawn else before, asked=uuid4().hex)

        await self._remembering.change_wish(name, asked)
        refusal = await self._remembering.answer(name, timeout_s=self._load_timeout_s + _TO_END_S + _ANSWER_S)
        if not is_withdrawn and self._state.is_withdrawn(name):
            raise _unloaded_meanwhile(name)
        if refusal and self._state.measurements.why_quarantined(name) is not None:
            raise ModelLoadFailed(refusal)
        if refusal:
            raise Overloaded(refusal, retry_after_s=_LATER_S)

    def _pinned(self, name: str, before: Wish) -> Wish:
        """From now on, beside what others have asked for meanwhile."""
        if before.is_withdrawn:
            raise _unloaded_meanwhile(name)
        return Wish(min_copies=1, asked=before.asked if self._remembering.is_pending(name, before) else "")

    # The owner

    async def _carry_out(self, name: str, wish: Wish) -> None:
        refusal = ""
        try:
            await (self._unload_here(name) if wish.is_withdrawn else self._load_here(name))
        except Exception as exc:  # the root of a task: what one model does to us must not end the gateway
            refusal = str(exc) or type(exc).__name__
            unexpected = None if isinstance(exc, ControlPlaneError) else exc
            _log.warning("what an administrator wants of a model cannot be done: %s", exc, extra={"model": name}, exc_info=unexpected)
        finally:
            self._changing.discard(name)
        self._state.measurements.answer(name, wish.asked, refusal)

    async def _load_here(self, name: str) -> None:
        self._facts(name)
        self._residency.loads.forgive(name)
        ready = self._ready_on(name)
        for server in ready:
            await self._residency.loads.reload(name, server)
        if not ready:
            await self._bring(name)

    async def _bring(self, name: str, *, waits_for_room: bool = True) -> None:
        if staying := self._what_stays_in_its_way(self._facts(name)):
            others = "" if len(staying) <= _NAMED else f" and {len(staying) - _NAMED} more"
            raise Overloaded(
                f"there is no room for '{name}' beside those that are to stay loaded: {', '.join(staying[:_NAMED])}{others}; "
                "`tidegate models release` lets one go when its room is needed",
                retry_after_s=_LATER_S,
            )
        deadline_s = self._state.now_s() + self._load_timeout_s + _TO_END_S
        await self._residency.bring(name, deadline_s=deadline_s, waits_for_room=waits_for_room)

    def _what_stays_in_its_way(self, facts: ModelFacts) -> list[str]:
        """Empty where there is a server on which there may be room for it some time: elsewhere who asks would wait in vain."""
        fleet, found = self._state.fleet, dict[str, None]()
        fitting = [server for server in fleet.servers.values() if server.is_open and server.has_labels(facts.spec.server_labels)]
        for server in [server for server in fitting if server.budget_bytes >= facts.resident_bytes]:
            staying = [copy for copy in server.copies.values() if self._stays(copy)]
            if server.budget_bytes - sum(copy.bytes for copy in staying) >= facts.resident_bytes:
                return []
            found.update(dict.fromkeys(copy.model for copy in staying))
        return sorted(found)

    def _stays(self, copy: Copy) -> bool:
        facts = self._state.fleet.models.get(copy.model)
        is_kept = facts is not None and 0 < self._state.fleet.ready_copies(copy.model) <= facts.spec.min_copies
        return is_kept and copy.state is ModelState.READY and not copy.is_step

    async def _unload_here(self, name: str) -> None:
        self._changing.add(name)
        try:
            await self._residency.loads.settle(name, timeout_s=self._load_timeout_s)
            for server in self._ready_on(name):
                await self._residency.loads.take_out(name, server, kind=FleetEventKind.UNLOADED, reason=_UNLOADED)
        finally:
            self._changing.discard(name)

    def _let_go(self, name: str) -> None:
        """What is there of it all the same: another loaded it, or it was there before this process."""
        for server in self._ready_on(name):
            if not self._state.fleet.servers[server].copies[name].is_step:
                self._residency.loads.let_go(name, server, kind=FleetEventKind.UNLOADED, reason=_UNLOADED)

    def _facts(self, name: str) -> ModelFacts:
        facts = self._state.fleet.models.get(name)
        if facts is None:
            raise ModelNotFound(f"no model '{name}' in any repository; `tidegate models list` shows the ones there are")
        return facts

    def _ready_on(self, name: str) -> list[str]:
        holders = self._state.fleet.holders.get(name, {})
        return [server.name for server in holders.values() if server.is_up and server.copies[name].state is ModelState.READY]

    def _model(self, name: str, index: list[ModelVersion], variant: ServedVariant | None) -> Model:
        facts = self._state.fleet.models.get(name)
        model = summarise(name, index, None if facts is None else facts.resident_bytes, variant)
        why = None if model.state is ModelState.READY else self._state.measurements.why_failed(name)
        return model if why is None else replace(model, reason=brief(why))


def _unloaded_meanwhile(model: str) -> Conflict:
    return Conflict(f"model '{model}' has been unloaded by an administrator meanwhile")
