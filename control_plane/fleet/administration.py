"""Administration of a fleet's models: where they are loaded, and loading and unloading them on all servers.

It is the fleet's counterpart of `models/model_service` (one Triton). `load` pins a model, so that it stays loaded; `unload`
removes it from all servers and suspends it until it is loaded or released; `release` cancels either. All three hold for all
gateways of the fleet and survive restarts (`fleet/view/memory`). Any gateway accepts them; the leader carries them out and
records the result.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from uuid import uuid4

from control_plane.core.errors import Conflict, ControlPlaneError, ModelLoadFailed, ModelNotFound, NotSupported, Overloaded
from control_plane.core.model import Model, ModelOverride, ModelState, ModelVersion, ServedVariant, lines_by_model, summarise
from control_plane.fleet.domain.event import FleetEventKind
from control_plane.fleet.domain.fleet import ModelFacts, Replica, Server
from control_plane.fleet.domain.memory import EVERYWHERE, DesiredState, Progress
from control_plane.fleet.routing.model_router import ModelRouter
from control_plane.fleet.view.catalogue import asked_of_all, best_lines, sharded_lines
from control_plane.fleet.view.memory import MemorySync
from control_plane.fleet.view.state import FleetState
from control_plane.models.served_variants import served_variants
from control_plane.sharding.domain.plan import read_plan
from control_plane.triton.servers import Servers
from control_plane.triton.triton_log import brief

_log = logging.getLogger(__name__)

_SUSPENDED = DesiredState(min_replicas=0, is_suspended=True)
_UNLOADED = "an administrator asked for it"
_LATER_S = 5.0
"""`Retry-After` when the leader has refused: it may have room then, or another model may have been
unloaded."""
_AT_ONCE = 200
"""Models that are summarised in one turn of the loop; there may be thousands."""
_MAX_NAMED = 3
"""Models that a refusal names."""
_TO_END_S = 15.0
"""Grace after the load timeout: by then a server has given up a load that takes too long, and has said
why."""
_ANSWER_S = 2.0
"""Time for the leader to see a request, and for its answer to come back."""


class FleetModels:
    """Administration service of a fleet's models: `models/ports.ModelAdministration`, and the list of
    models."""

    def __init__(self, *, state: FleetState, servers: Servers, router: ModelRouter, memory: MemorySync, load_timeout_s: float) -> None:
        self._state = state
        self._servers = servers
        self._router = router
        self._memory = memory
        self._load_timeout_s = load_timeout_s
        self._changing: set[str] = set()
        """Models that this process is loading or unloading for an administrator."""

    async def run(self) -> None:
        """While this process is the leader, carry out what administrators have told other processes, until
        cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._memory.wait_for_sync()
                for name, wish in self._state.specs.wishes.items() if self._memory.is_leader() else ():
                    if name not in self._changing and self._memory.is_pending(name, wish):
                        self._changing.add(name)
                        tasks.create_task(self._carry_out(name, wish), name=f"wish-for-{name}")
                    # Repeated every turn: a replica may appear later, for instance with a server that joins.
                    elif name not in self._changing and wish.is_suspended:
                        self._unload_suspended(name)

    async def list_models(self) -> list[Model]:
        """List the models of all repositories and servers, by name. Raises UpstreamUnavailable: no server is
        up, or none answers."""
        lines, variants = await self._listed()
        found = list[Model]()
        for number, (name, own) in enumerate(lines.items()):
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
            found.append(self._model(name, own, variants.get(name)))
        return found

    async def get(self, name: str) -> Model:
        """Return one model. Raises ModelNotFound, UpstreamUnavailable."""
        lines, variants = await self._listed()
        if name not in lines:
            raise ModelNotFound(f"no model '{name}' in any repository; `tidegate models list` shows the ones there are")
        return self._model(name, lines[name], variants.get(name))

    async def _listed(self) -> tuple[dict[str, list[ModelVersion]], dict[str, ServedVariant]]:
        """Return the lines of all servers' indexes by model, sorted and with models that are nowhere, and the variants that
        are served. Raises UpstreamUnavailable."""
        indexes = await asked_of_all(self._servers.to_ask(), lambda server: server.control.index())
        lines = await asyncio.to_thread(_lines_of_all, [*indexes, sharded_lines(self._state)], set(self._state.specs.described))
        told = await asked_of_all(self._servers.to_ask(), served_variants)
        return lines, {model: variant for each in told for model, variant in each.items()}

    async def load(self, name: str, override: ModelOverride | None = None) -> None:
        """Load the model where it fits best and keep it loaded; if it is loaded already, load it anew, on one
        server after the other. Of a sharded model its parts are loaded.

        Raises:
            ModelNotFound, ModelLoadFailed, DeadlineExceeded, UpstreamUnavailable.
            Overloaded: there is no room for it.
            NotSupported: the load brings an override of the configuration or files along.
            StoreUnavailable: nobody was told that the model is to stay.
            Conflict: an administrator has unloaded it meanwhile.
        """
        if override is not None:  # after an eviction the model would come back without it
            raise NotSupported("a fleet loads models as their folders have them; change the folder, or serve it by one Triton of its own")
        if config := self._facts(name).spec.sharded:
            await self._memory.change_desired(name, _not_suspended)
            for part in read_plan(config).parts:
                await self.load(part)
            return
        if self._memory.is_leader():
            await self._memory.change_desired(name, _not_suspended)
            await self._load_here(name)
        else:
            await self._ask_leader(name, is_suspended=False)
        await self._memory.change_desired(name, lambda before: self._pinned(name, before))

    async def load_everywhere(self, name: str) -> None:
        """Load the model as `load` does, then on every other server that suits it; servers that join get it, too.

        Raises as `load` does, and Overloaded: servers are full of what is to stay loaded, or did not load it in the
        time of a load. They do as soon as they have room.
        """
        if config := self._facts(name).spec.sharded:
            for part in read_plan(config).parts:
                await self.load_everywhere(part)
            return
        await self.load(name)
        await self._memory.change_desired(name, lambda before: replace(self._pinned(name, before), min_replicas=EVERYWHERE))
        facts, before, deadline_s = self._facts(name), list[Server](), 0.0
        while missing := self._servers_lacking(facts):
            if (why := self._state.measurements.why_quarantined(name)) is not None:
                raise ModelLoadFailed(why)
            if missing != before:  # they get it one after the other
                before, deadline_s = missing, self._state.now_s() + self._load_timeout_s + _TO_END_S
            is_full = not all(self._has_room_beside_kept(server, facts) for server in missing)
            if is_full or self._state.now_s() >= deadline_s:
                named = ", ".join(server.name for server in missing)
                raise Overloaded(f"'{name}' is not loaded on {named}, which get it when they have room for it", retry_after_s=_LATER_S)
            await self._memory.wait_for_sync()

    async def reload_built(self, built: str) -> None:
        """Load all replicas again that are made of this model, whose files are new, on one server after the
        other; failures are logged."""
        for name in [name for name in self._state.specs.described if built == name or built in self._state.specs.steps_of(name)]:
            self._state.measurements.forgive(name)
            for server in self._ready_on(name):
                if self._state.fleet.servers[server].replicas[name].is_step:
                    continue  # it is loaded with its ensemble
                try:
                    await self._router.loads.reload(name, server, reason=f"{built} was built anew")
                except ControlPlaneError as exc:
                    _log.warning("the new build is not served by server %s: %s", server, exc, extra={"model": name})

    async def keep(self, name: str, *, waits_for_room: bool = True) -> None:
        """Have a model loaded as long as this process runs, as it was started to, unless an administrator has
        suspended it. Raises as `load`."""
        if config := self._facts(name).spec.sharded:
            for part in read_plan(config).parts:
                await self.keep(part, waits_for_room=waits_for_room)
            return
        if self._state.specs.is_suspended(name):
            _log.info(
                "model stays unloaded, since an administrator unloaded it; `tidegate models load` loads it again", extra={"model": name}
            )
            return
        if self._memory.is_leader():
            # Whoever started this process may have repaired the model before.
            self._state.measurements.forgive(name)
        if not self._state.fleet.ready_replicas(name):  # else an earlier run, or another gateway, has loaded it
            await self._bring(name, waits_for_room=waits_for_room)
        self._state.specs.pin(name, 1)

    async def release(self, name: str) -> None:
        """Take back what administrators have said of a model: it is loaded and evicted as requests need, and
        kept only if its folder or the command line says so.

        Raises ModelNotFound; StoreUnavailable: nobody was told.
        """
        if name not in self._state.specs.wishes:
            self._facts(name)
        await self._memory.wish(name, None)

    @property
    def desired(self) -> Mapping[str, DesiredState]:
        """What administrators have said of models, by model."""
        return self._state.specs.wishes

    def progress(self, name: str) -> Progress:
        """Return how far the fleet is with a model, as this process sees it."""
        fleet, facts = self._state.fleet, self._state.fleet.models.get(name)
        return Progress(
            ready=len(fleet.ready_replicas(name)),
            held=len(fleet.replicas(name)),
            missing=len(self._servers_lacking(facts)) if facts is not None else 0,
            is_loading=fleet.is_loading(name),
            failure=self._state.measurements.why_quarantined(name) or "",
        )

    async def set_desired(self, name: str, desired: DesiredState | None) -> None:
        """Set what is wanted of a model, without waiting until it is so; None for what its folder says.

        Raises ModelNotFound; StoreUnavailable: nobody was told.
        """
        if desired is not None:
            self._facts(name)
        await self._memory.wish(name, desired)

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Unload a model from every server, after its requests in flight have finished, and suspend it.

        Raises:
            DeadlineExceeded, UpstreamUnavailable.
            StoreUnavailable: nobody was told.
        """
        if name not in self._state.fleet.models and not self._state.fleet.replicas(name):
            return
        for part in self._state.specs.parts_of(name) if unload_dependents else ():
            await self.unload(part)
        if self._memory.is_leader():
            await self._memory.wish(name, _SUSPENDED)
            await self._unload_here(name)
        else:
            await self._ask_leader(name, is_suspended=True)

    # In processes that are not the leader

    async def _ask_leader(self, name: str, *, is_suspended: bool) -> None:
        """Ask the leader, and wait for its answer; an equal request that is pending already is joined."""

        def asked(before: DesiredState) -> DesiredState:
            # Two administrators who ask for the same wait for the same answer.
            if before.is_suspended == is_suspended and self._memory.is_pending(name, before):
                return before
            return replace(_SUSPENDED if is_suspended else DesiredState() if before.is_suspended else before, asked=uuid4().hex)

        await self._memory.change_desired(name, asked)
        refusal = await self._memory.answer(name, timeout_s=self._load_timeout_s + _TO_END_S + _ANSWER_S)
        if not is_suspended and self._state.specs.is_suspended(name):
            raise _unloaded_meanwhile(name)
        if refusal and self._state.measurements.why_quarantined(name) is not None:
            raise ModelLoadFailed(refusal)
        if refusal:
            raise Overloaded(refusal, retry_after_s=_LATER_S)

    def _pinned(self, name: str, before: DesiredState) -> DesiredState:
        """The desired state that keeps a model loaded. It does not overwrite a request that is still
        pending."""
        if before.is_suspended:
            raise _unloaded_meanwhile(name)
        return DesiredState(min_replicas=1, asked=before.asked if self._memory.is_pending(name, before) else "")

    # In the leader

    async def _carry_out(self, name: str, wish: DesiredState) -> None:
        """Carry out, as the leader, what another process was told, and record the outcome."""
        refusal = ""
        try:
            await (self._unload_here(name) if wish.is_suspended else self._load_here(name))
        except Exception as exc:  # the root of a task: one model's failure must not end the gateway
            refusal = str(exc) or type(exc).__name__
            unexpected = None if isinstance(exc, ControlPlaneError) else exc
            _log.warning(
                "an administrator's request for a model could not be carried out: %s", exc, extra={"model": name}, exc_info=unexpected
            )
        finally:
            self._changing.discard(name)
        self._state.measurements.answer(name, wish.asked, refusal)

    async def _load_here(self, name: str) -> None:
        """Load the model as the leader, or load its replicas anew if there are any."""
        self._facts(name)
        self._state.measurements.forgive(name)
        ready = self._ready_on(name)
        # One server after the other, so that the model goes on being served.
        for server in ready:
            await self._router.loads.reload(name, server)
        if not ready:
            await self._bring(name)

    async def _bring(self, name: str, *, waits_for_room: bool = True) -> None:
        """Have a model loaded, after checking that pinned models leave room for it."""
        if staying := self._what_stays_in_its_way(self._facts(name)):
            others = "" if len(staying) <= _MAX_NAMED else f" and {len(staying) - _MAX_NAMED} more"
            raise Overloaded(
                f"there is no room for '{name}' beside those that are to stay loaded: {', '.join(staying[:_MAX_NAMED])}{others}; "
                "`tidegate models release` lets one go when its room is needed",
                retry_after_s=_LATER_S,
            )
        # An administrator waits for a whole load, longer than any request does.
        deadline_s = self._state.now_s() + self._load_timeout_s + _TO_END_S
        await self._router.ensure_loaded(name, deadline_s=deadline_s, waits_for_room=waits_for_room)

    def _what_stays_in_its_way(self, facts: ModelFacts) -> list[str]:
        """Pinned models that leave no room on any suitable server; empty if there is a server with room for
        the model some time. Without this check a caller would wait in vain."""
        found = dict[str, None]()
        for server in self._fitting(facts):
            if self._has_room_beside_kept(server, facts):
                return []
            found.update(dict.fromkeys(replica.model for replica in server.replicas.values() if self._stays(replica)))
        return sorted(found)

    def _fitting(self, facts: ModelFacts) -> list[Server]:
        """The servers in use that suit the model, and could hold it if they were empty."""
        open_ = [server for server in self._state.fleet.servers.values() if server.is_open and server.has_labels(facts.spec.server_labels)]
        return [server for server in open_ if server.budget_bytes >= facts.resident_bytes]

    def _has_room_beside_kept(self, server: Server, facts: ModelFacts) -> bool:
        return (
            server.budget_bytes - sum(replica.bytes for replica in server.replicas.values() if self._stays(replica)) >= facts.resident_bytes
        )

    def _servers_lacking(self, facts: ModelFacts) -> list[Server]:
        """The servers that suit the model and do not have it ready; none if it has as many replicas as it may."""
        ready, most = self._ready_on(facts.name), facts.spec.max_replicas
        return [] if most is not None and len(ready) >= most else [each for each in self._fitting(facts) if each.name not in ready]

    def _stays(self, replica: Replica) -> bool:
        """Whether the replica must not be evicted, as its model has no more than it has to have."""
        facts = self._state.fleet.models.get(replica.model)
        is_kept = facts is not None and 0 < len(self._state.fleet.ready_replicas(replica.model)) <= self._state.fleet.least_replicas(facts)
        return is_kept and replica.state is ModelState.READY and not replica.is_step

    async def _unload_here(self, name: str) -> None:
        self._changing.add(name)
        try:
            # A load under way would otherwise bring the model back after its unload.
            await self._router.loads.wait_for_loads(name, timeout_s=self._load_timeout_s)
            for server in self._ready_on(name):
                await self._router.loads.unload(name, server, kind=FleetEventKind.UNLOADED, reason=_UNLOADED)
        finally:
            self._changing.discard(name)

    def _unload_suspended(self, name: str) -> None:
        """Schedule the unload of replicas of a suspended model: another program loaded it, or it was there
        before this process."""
        for server in self._ready_on(name):
            if not self._state.fleet.servers[server].replicas[name].is_step:
                self._router.loads.schedule_unload(name, server, kind=FleetEventKind.UNLOADED, reason=_UNLOADED)

    def _facts(self, name: str) -> ModelFacts:
        facts = self._state.fleet.models.get(name)
        if facts is None:
            raise ModelNotFound(f"no model '{name}' in any repository; `tidegate models list` shows the ones there are")
        return facts

    def _ready_on(self, name: str) -> list[str]:
        found = self._state.fleet.replicas(name)
        return [server.name for server, replica in found if server.is_up and replica.state is ModelState.READY]

    def _model(self, name: str, lines: list[ModelVersion], variant: ServedVariant | None) -> Model:
        facts = self._state.fleet.models.get(name)
        model = summarise(name, lines, None if facts is None else facts.resident_bytes, variant)
        why = None if model.state is ModelState.READY else self._state.measurements.why_failed(name)
        return model if why is None else replace(model, reason=brief(why))


def _lines_of_all(indexes: list[list[ModelVersion]], described: set[str]) -> dict[str, list[ModelVersion]]:
    found = lines_by_model(best_lines([line for each in indexes for line in each]))
    return {name: found.get(name, []) for name in sorted(found.keys() | described)}


def _not_suspended(before: DesiredState) -> DesiredState:
    return DesiredState() if before.is_suspended else before


def _unloaded_meanwhile(model: str) -> Conflict:
    return Conflict(f"model '{model}' has been unloaded by an administrator meanwhile")
