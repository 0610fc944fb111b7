"""Service that lists, loads and unloads the models of one Triton, and restores the wanted ones after Triton
was restarted.

Called by the frontends and the admin API, at start, and by `triton/supervisor` after a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from control_plane.core.errors import ControlPlaneError, ModelLoadFailed, ModelNotFound, StartupError, UpstreamUnavailable
from control_plane.core.model import Model, ModelOverride, ModelState, ModelVersion, check_name, lines_by_model, summarise
from control_plane.models.change_queue import ChangeQueue
from control_plane.models.dead_models import DeadModels
from control_plane.models.load_order import after_steps
from control_plane.models.loaded_contents import LoadedContents
from control_plane.models.ports import LoadWatch, ModelRepository, ModelStubs
from control_plane.models.prepared_load import PreparedLoad, Unwatched
from control_plane.models.served_variants import served_variants
from control_plane.models.tiers.warm_tier_manager import WarmTierManager
from control_plane.triton.compute_time import ComputeTime
from control_plane.triton.ports import Upstream
from control_plane.triton.server_state import ServerState
from control_plane.triton.servers import Servers
from control_plane.triton.triton_log import brief

_log = logging.getLogger(__name__)

ALL_MODELS = "*"

_MAX_FAILURES = 1000
_LOOK_TIMEOUT_S = 2.0
"""A Triton that takes longer to say what it has computed is stuck itself."""


@dataclass(frozen=True, slots=True)
class LoadFailure:
    """Model that was wanted at start and could not be loaded."""

    name: str
    reason: str


class ModelService:
    """Model control of one Triton, with the desired state: the models that are wanted.

    For an attached Triton `repository` and `contents` are None: it has a repository of its own, and others
    load into it too.
    """

    def __init__(
        self,
        *,
        servers: Servers | ServerState,
        repository: ModelRepository | None,
        load: list[str],
        load_timeout_s: float,
        contents: LoadedContents | None = None,
        tiers: WarmTierManager | None = None,
        restores: bool = True,
        watch: LoadWatch | None = None,
        stubs: ModelStubs[Any] | None = None,
    ) -> None:
        """`tiers` has models that are not in the repository yet: they are fetched before they are placed.

        Without `restores` nothing is loaded into a Triton that was restarted; a fleet decides anew what to
        load.
        """
        self._servers = servers
        self._repository = repository
        self.contents = contents
        self._tiers = tiers
        self._restores = restores
        self._watch = watch or Unwatched()
        self._dead = DeadModels(stubs)
        self._failures: dict[str, str] = {}
        """Reason of the last load's failure, by model, until the model is loaded or unloaded."""
        self._pinned: dict[str, ExitStack] = {}
        """Loaded models whose files are pinned in the warm tier, since Triton may read them again."""
        self._initial = load
        self._load_timeout_s = load_timeout_s
        self._changes = ChangeQueue()
        self._desired: dict[str, ModelOverride | None] | None = None
        self.on_event: Callable[[str, str, str], None] = lambda what, model, reason: None
        """Told what has become of a model: `loaded`, `unloaded` or `failed`, its name, and why."""

    async def run(self) -> None:
        """Own the tasks of loads and unloads until cancelled; while it does not run, models cannot be
        changed.
        """
        await self._changes.run()

    async def list_models(self) -> list[Model]:
        """Return every model of the repositories and of Triton's index, by name. Raises
        UpstreamUnavailable.
        """
        index = await self._servers.ask(lambda upstream: upstream.control.index())
        memory = await self._servers.ask(lambda upstream: upstream.control.memory_bytes())
        variants = await self._servers.ask(served_variants)
        lines = lines_by_model(index)
        names = lines.keys() | await self._known_names()
        return [self._with_reason(summarise(name, lines.get(name, []), memory.get(name), variants.get(name))) for name in sorted(names)]

    def _with_reason(self, model: Model) -> Model:
        """Add why the last load failed: Triton's index has a reason only for what a backend has refused."""
        is_served = model.state is ModelState.READY
        return model if is_served else replace(model, reason=self._failures.get(model.name, model.reason))

    async def get(self, name: str) -> Model:
        """Return one model. Raises ModelNotFound, UpstreamUnavailable."""
        for model in await self.list_models():
            if model.name == name:
                return model
        raise ModelNotFound(f"no model '{name}' in any repository; `tidegate models list` shows the ones there are")

    async def load(self, name: str, override: ModelOverride | None = None) -> None:
        """Load or reload a model and want it from now on, with its override. A caller that leaves does not
        end the load.

        A load without an override keeps the one in force, which only an unload ends. (Triton does the same
        until the repository's files change; following that exception, the model would come back as another
        one after a restart.)

        Raises:
            InvalidRequest: the name cannot be a model's.
            ModelNotFound: no repository has the model.
            ModelLoadFailed, DeadlineExceeded, UpstreamUnavailable: the load failed; the model is not wanted
                then.
        """
        check_name(name)
        self._servers.pick()
        await self._changes.carry_out(name, ("load", override), partial(self._load_and_want, name, override))

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Unload a model and want it no longer; requests in flight finish. For a model that is not loaded
        Triton reports success.

        Raises what `load` raises.
        """
        check_name(name)
        self._servers.pick()
        unload = partial(self.unload_now, name, unload_dependents=unload_dependents)
        await self._changes.carry_out(name, ("unload", unload_dependents), unload)

    def prepared(self, name: str) -> AbstractAsyncContextManager[PreparedLoad]:
        """Context manager of one load: at its begin the model's files are fetched, placed and checked, and
        its contents become unknown; the block asks Triton by `PreparedLoad.load`; after it they are known.

        It is entered in a task that goes on when the load's caller leaves, and while no other change of the
        model is under way. A model whose load failed or was cancelled stays unknown. Its files stay pinned
        while it is loaded. Raises as `load`.
        """
        check_name(name)
        return self._prepared(name, None, self._servers.pick())

    @asynccontextmanager
    async def _prepared(self, name: str, override: ModelOverride | None, upstream: Upstream) -> AsyncIterator[PreparedLoad]:
        try:
            with ExitStack() as pins:
                models = await self._place(name, override, pins)
                async with nullcontext() if self.contents is None else self.contents.loading(upstream, name, override):
                    yield PreparedLoad(upstream.control, models, override, self._watch, self._load_timeout_s)
                self._pinned.setdefault(name, ExitStack()).push(pins.pop_all())
        except ControlPlaneError as exc:
            self._note_failure(name, exc)
            raise
        self._failures.pop(name, None)
        self.on_event("loaded", name, "")

    async def unload_now(self, name: str, *, unload_dependents: bool = False) -> None:
        """Unload a model as `unload` does, but in the caller's task, which goes on when its own caller leaves
        and while no other change of the model is under way."""
        check_name(name)
        upstream, contents = self._servers.pick(), self.contents
        dead = self._dead.among(await self._closure(name) if unload_dependents else (name,))
        async with nullcontext(set[str]()) if contents is None else contents.unloading(upstream, name, unload_dependents) as gone:
            gone |= await self._unload_and_forget(upstream, name, unload_dependents)
            for each in dead:
                await self._release_dead(upstream, each)

    def replacing(self, models: Collection[str]) -> AbstractAsyncContextManager[None]:
        """Context manager around an unload and a load of models with a dead stub: see `DeadModels.replacing`."""
        return self._dead.replacing(models)

    def note_death(self, name: str) -> None:
        """Note that a stub of the model has died, which is mended by its next load, or one of an ensemble."""
        self._dead.note(name)

    def is_dead(self, name: str) -> bool:
        """Whether a stub of the model has died since its last load."""
        return bool(self._dead.among((name,)))

    async def compute_times(self, name: str) -> dict[str, ComputeTime]:
        """Return what Triton has computed of the model and its steps since their loads. Raises
        UpstreamUnavailable, UpstreamFailed."""
        upstream, closure = self._servers.pick(), await self._closure(name)
        async with asyncio.timeout(_LOOK_TIMEOUT_S):
            times = await upstream.control.compute_times()
        return {each: times[each] for each in closure if each in times}

    async def end_stubs(self, models: Sequence[str]) -> None:
        """Kill the stubs of these models, whose deaths are noticed as any other."""
        await self._dead.kill(models)

    async def needing(self, name: str) -> list[str]:
        """Return the wanted models that are this one or need it."""
        return [each for each in self._desired or {} if each == name or await asyncio.to_thread(self._needs, each, name)]

    async def complete_unload(self, name: str) -> None:
        """Bring a model with a dead stub to UNAVAILABLE that Triton is unloading, which it would be for ever.
        Raises ControlPlaneError."""
        upstream = self._servers.pick()
        if any(line.name == name and line.state is ModelState.UNLOADING for line in await upstream.control.index()):
            await self._release_dead(upstream, name)

    async def reload_built(self, built: str) -> None:
        """Reload every wanted model that is or needs the model `built`, whose files are new; also one that
        failed for lack of them.

        Failures are logged: Triton goes on serving what was loaded before.
        """
        for name in [name for name in self._desired or {} if await asyncio.to_thread(self._needs, name, built)]:
            try:
                await self.load(name)
            except ControlPlaneError as exc:
                _log.warning("what has been built is not served: %s", exc, extra={"model": name})

    async def restore(self, upstream: Upstream) -> list[LoadFailure]:
        """Load all wanted models into a Triton that has just started; return those that failed, the others
        are served.
        """
        self._dead.clear()
        if self.contents is not None:
            await self.contents.restart(upstream)
        if self._repository is not None:
            await self._place_all(self._repository)
        if not self._restores:
            self._forget_all()
            return []
        if self._desired is None:
            self._desired = dict.fromkeys(await self._expand(upstream))
        wanted = dict(self._desired)
        closures = {name: await self._closure(name) for name in wanted}
        results = await after_steps(closures, lambda name: self._load(name, wanted[name], upstream))
        return [failure for name, result in zip(wanted, results, strict=True) if (failure := _report(name, result))]

    async def _place_all(self, repository: ModelRepository) -> None:
        """Place all models. Folders that are wrong keep a gateway from its start, but no Triton from coming back: what is placed
        already serves, and each load places its model.
        """
        try:
            await asyncio.to_thread(repository.place_all)
        except StartupError as exc:
            if self._desired is None:
                raise
            _log.error("models stay as they were placed, since the repositories have become unusable: %s", exc)

    async def _load_and_want(self, name: str, override: ModelOverride | None) -> None:
        if self._desired is None:
            self._desired = {}
        override = override or self._desired.get(name)
        await self._load(name, override, self._servers.pick())
        self._desired[name] = override

    async def _load(self, name: str, override: ModelOverride | None, upstream: Upstream) -> None:
        dead = self._dead.among(await self._closure(name))
        async with self._dead.replacing(dead) if dead else nullcontext():
            # Triton takes a load of what it believes to be READY for no change.
            for each in dead:
                async with nullcontext() if self.contents is None else self.contents.unloading(upstream, each, unload_dependents=False):
                    await upstream.control.unload(each, timeout_s=self._load_timeout_s)
            async with self._prepared(name, override, upstream) as prepared:
                await prepared.load()

    async def _release_dead(self, upstream: Upstream, name: str) -> None:
        """Have Triton release a model with a dead stub that has been unloaded: it ends the unload of a new copy
        only. What cannot be loaded any more stays UNLOADING, and is never used."""
        try:
            async with self._dead.replacing((name,)):
                await upstream.control.load(name, timeout_s=self._load_timeout_s)
                await upstream.control.unload(name, timeout_s=self._load_timeout_s)
        except ModelLoadFailed as exc:
            _log.warning("Triton goes on unloading model '%s', whose Python process has died: %s", name, exc, extra={"model": name})

    async def _closure(self, name: str) -> Sequence[str]:
        """Return the model and its steps, as far as its files are here."""
        if self._repository is None:
            return (name,)
        try:
            return await asyncio.to_thread(self._repository.ensemble_closure, name)
        except ControlPlaneError:
            return (name,)  # its files came with the load

    async def _unload_and_forget(self, upstream: Upstream, name: str, unload_dependents: bool) -> set[str]:
        """Unload a model and drop all that Triton has unloaded from the wanted models; return their names."""
        control = upstream.control
        await control.unload(name, unload_dependents=unload_dependents, timeout_s=self._load_timeout_s)
        gone = {name}
        if unload_dependents:
            gone |= {line.name for line in await control.index() if _was_unloaded(line)}
        for each in gone:
            self._failures.pop(each, None)
            if self._desired is not None:
                self._desired.pop(each, None)
            if each in self._pinned:
                self._pinned.pop(each).close()
            self.on_event("unloaded", each, "")
        return gone

    async def _place(self, name: str, override: ModelOverride | None, pins: ExitStack) -> Sequence[str]:
        """Fetch, place and check a model's files, and pin them until `pins` is closed; return the model and
        the steps that are loaded with it."""
        # An override with files is the whole model: no repository need have it, and Triton reads none.
        if self._repository is None or (override and override.files):
            return (name,)
        if self._tiers is not None and name in self._tiers.names():
            await self._tiers.ensure_warm(name, deadline_s=asyncio.get_running_loop().time() + self._load_timeout_s)
            pins.enter_context(self._tiers.pinned(name))
        return await asyncio.to_thread(_placed, self._repository, name)

    def _forget_all(self) -> None:
        """Want no models, and unpin their files: Triton was restarted and has nothing loaded."""
        self._desired = {}
        for held in self._pinned.values():
            held.close()
        self._pinned.clear()

    def _note_failure(self, name: str, error: ControlPlaneError) -> None:
        if not isinstance(error, UpstreamUnavailable):  # that says nothing about the model
            self._failures.pop(name, None)
            self._failures[name] = brief(str(error))
            self.on_event("failed", name, brief(str(error)))
        if len(self._failures) > _MAX_FAILURES:  # bounded: callers that bring the files along choose any name
            del self._failures[next(iter(self._failures))]
        if self._restores:  # otherwise the fleet logs it, with the server's name
            _log.error("model could not be loaded: %s", error, extra={"model": name})

    async def _expand(self, upstream: Upstream) -> list[str]:
        if ALL_MODELS not in self._initial:
            return self._initial
        return sorted({line.name for line in await upstream.control.index()} | await self._known_names())

    def _needs(self, name: str, model: str) -> bool:
        try:
            return self._repository is not None and model in self._repository.ensemble_closure(name)
        except ControlPlaneError:
            return False  # no repository has it: its files came with the load

    async def _known_names(self) -> set[str]:
        placed = await asyncio.to_thread(self._repository.names) if self._repository is not None else []
        return {*placed, *(() if self._tiers is None else self._tiers.names())}


def _placed(repository: ModelRepository, name: str) -> Sequence[str]:
    """Place and check a model; return it and its steps. Reads files."""
    models = repository.place(name)
    repository.require_loadable(name)
    return models


def _was_unloaded(line: ModelVersion) -> bool:
    return line.state is ModelState.UNLOADING or (line.state is ModelState.UNAVAILABLE and line.reason == "unloaded")


def _report(name: str, result: BaseException | None) -> LoadFailure | None:
    if result is None:
        _log.info("model ready", extra={"model": name})
        return None
    if not isinstance(result, ControlPlaneError):
        raise result
    return LoadFailure(name, str(result))
