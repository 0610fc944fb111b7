"""Fingerprints of what is loaded in Triton: known with certainty or not at all. They are part of the response
cache's keys.

`models/model_service` loads and unloads through this module. What makes a fingerprint certain:

- Before a change begins, the model, an ensemble's steps and every ensemble that needs one of them become
  unknown in every process. Afterwards they have new fingerprint objects, so that no response computed
  meanwhile is cached.
- A BLS model (one whose code may call others) may call any model: any load or unload invalidates its
  fingerprint, which stays unknown while any model's is.
- A load counts only if what it reads was the same before and after it, and if Triton's own configuration of
  the model names the same places.
- Triton reloads only files with newer times. Where contents differ from what Triton has, also outside the
  model's folder, and where it is unknown what Triton has, the placed model's times are moved forward.
- Changes that touch the same model are serialized.

The models that a failed, timed-out or cancelled change has touched stay unknown until a load of them
succeeds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from weakref import WeakValueDictionary

from control_plane.core.errors import ControlPlaneError, ModelLoadFailed
from control_plane.core.fingerprint import (
    LoadedConfig,
    LoadedModel,
    ModelContents,
    Models,
    callers,
    dependencies_of,
    dependents_of,
    ensemble_closure,
    fingerprint_of,
)
from control_plane.core.model import ModelOverride, ModelState
from control_plane.models.ports import FingerprintBoard, ModelReading
from control_plane.triton.ports import Upstream

_log = logging.getLogger(__name__)

_READS_AT_ONCE = 4
"""Models whose files are digested at once, as many as Triton loads at once. It takes a thread seconds per model of some gigabytes,
and there may be no more than six (`asyncio.to_thread`), which inflate bodies, watch loads and more."""


class LoadedContents:
    """Tracker of the fingerprints of one Triton, into which nobody else may load models."""

    def __init__(self, reading: ModelReading, board: FingerprintBoard) -> None:
        self._reading = reading
        self._board = board
        self._upstream: Upstream | None = None
        self._models: dict[str, LoadedModel | None] = {}
        """Models that Triton may have loaded; None for one whose contents are unknown."""
        self._overrides: dict[str, ModelOverride | None] = {}
        self._published: dict[str, set[str]] = {}
        """Models whose fingerprint is published, each with the models it needed then."""
        # Three locks, always taken in this order: a change holds those of its models for minutes, asking Triton what is
        # certain takes one for milliseconds, and what only publishes must not wait for either.
        self._changing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._certifying = asyncio.Lock()
        self._publishing = asyncio.Lock()
        self._reads = asyncio.Semaphore(_READS_AT_ONCE)

    async def restart(self, upstream: Upstream) -> None:
        """Start anew with a Triton that has just started and has nothing loaded; changes under way with
        another no longer count.
        """
        async with self._publishing:
            self._upstream = upstream
            # Also what was unknown: the others' contents count, whatever a load was doing when Triton ended.
            had = self._models.keys() | self._published.keys()
            self._models.clear()
            self._overrides.clear()
            await self._publish_unknown(self._published)
            await self._board.forget(had)

    @asynccontextmanager
    async def loading(self, upstream: Upstream, name: str, override: ModelOverride | None) -> AsyncIterator[None]:
        """Context manager around a load of the placed model, which publishes the fingerprints of what has
        been loaded; within the block they are unknown.
        """
        async with self._locked(lambda: self._with_steps(name, override)) as names:
            was = {each: self._models[each] for each in names if each in self._models}
            overrides = {**self._overrides, name: override}
            await self._make_unknown(names)
            await self._board.make_unknown(names)
            # Read before and after the load: if both are equal, that is what Triton has read in between.
            before = await self._read(names, overrides)
            for each, model in was.items():
                await self._force_reread(each, model, before.get(each))
            try:
                yield
            except ModelLoadFailed:
                # Triton keeps serving what it had of the steps; only what is certainly unchanged becomes
                # known again.
                await self._make_unknown(await self._with_steps(name, override) - names)
                await self._board.forget(await _missing(upstream, names))
                await self._publish_certain(upstream, _unchanged(was, await self._read(names - {name}, overrides)), {})
                raise
            # Configurations may have changed while it loaded: a model that has become a step meanwhile may
            # have been loaded too.
            await self._make_unknown(await self._with_steps(name, override) - names)
            after = await self._read(names, overrides)
            unsure = {each for each, model in was.items() if _may_have_been_ignored(model, before.get(each), is_step=each != name)}
            certain = {each: contents for each, contents in after.items() if contents == before.get(each) and each not in unsure}
            await self._publish_certain(upstream, certain, {name: override})

    @asynccontextmanager
    async def unloading(self, upstream: Upstream, name: str, unload_dependents: bool) -> AsyncIterator[set[str]]:
        """Context manager around an unload of the model; the block adds the models that Triton has unloaded
        to the set that it is given.
        """
        async with self._locked(lambda: self._to_unload(name, unload_dependents)) as names:
            was = {each: model.contents for each in names if (model := self._models.get(each)) is not None}
            await self._make_unknown(names)
            gone = {name}
            yield gone
            for each in gone & names:
                self._models.pop(each, None)
                self._overrides.pop(each, None)
            await self._board.forget(gone)
            await self._publish_certain(upstream, {each: contents for each, contents in was.items() if each not in gone}, {})

    def dependents_of(self, name: str) -> set[str]:
        """Return the loaded models that need this one."""
        return dependents_of((name,), self._models)

    @asynccontextmanager
    async def _locked(self, find: Callable[[], Awaitable[set[str]]]) -> AsyncIterator[set[str]]:
        """Hold the locks of the models that `find` returns, and yield their names.

        Locks are taken in sorted order, so that there is no deadlock. The set may have grown while it waited
        for them, so `find` is asked again until it returns no model that is not locked.
        """
        names = set[str]()
        async with AsyncExitStack() as held:
            while not (found := await find()) <= names:
                names |= found
                await held.aclose()
                for lock in [self._changing.setdefault(name, asyncio.Lock()) for name in sorted(names)]:
                    await held.enter_async_context(lock)
            yield names

    async def _to_unload(self, name: str, unload_dependents: bool) -> set[str]:
        return await self._with_steps(name, self._overrides.get(name)) if unload_dependents else {name}

    async def _with_steps(self, name: str, override: ModelOverride | None) -> set[str]:
        """Return the models that a load may change, by the present configurations and by those that were
        loaded.
        """
        found = ensemble_closure(name, self._models)
        try:
            return found.union(await asyncio.to_thread(self._reading.ensemble_closure, name, override))
        except ModelLoadFailed:
            return found  # the configuration cannot be read: the load fails in Triton, which says why

    async def _make_unknown(self, names: Collection[str]) -> None:
        """Make models unknown in every process, with all that need them."""
        self._models.update(dict.fromkeys(names))
        async with self._publishing:
            needing = dependents_of(names, self._models)  # BLS models included, also for a model that is new
            doubtful = [each for each, needed in self._published.items() if each in needing or not needed.isdisjoint(names)]
            await self._publish_unknown(doubtful)

    async def _publish_unknown(self, names: Iterable[str]) -> None:
        changes = dict.fromkeys(names)
        if changes:
            await self._board.publish(changes)
        for each in changes:
            del self._published[each]

    async def _read(self, names: Iterable[str], overrides: Mapping[str, ModelOverride | None]) -> dict[str, ModelContents]:
        """Digest the contents of models; those that cannot be read are left out."""
        found: dict[str, ModelContents] = {}
        for each in names:
            try:
                async with self._reads:
                    found[each] = await asyncio.to_thread(self._reading.read, each, overrides.get(each))
            except ModelLoadFailed as exc:
                _log.info("answers are not kept: %s", exc, extra={"model": each})
        return found

    async def _force_reread(self, name: str, was: LoadedModel | None, contents: ModelContents | None) -> None:
        """Make Triton read a placed model anew, if what it has loaded is unknown or differs from the
        files.
        """
        if contents is not None and not contents.comes_with_load and (was is None or was.contents != contents):
            await asyncio.to_thread(self._reading.mark_changed, name)

    async def _publish_certain(
        self, upstream: Upstream, certain: Mapping[str, ModelContents], overrides: Mapping[str, ModelOverride | None]
    ) -> None:
        """Publish the fingerprints of what is certain now, and of the models that need it and are served.

        Calls are serialized, since each builds on what the one before has found.
        """
        async with self._certifying:
            configs = await _configs(upstream, certain)
            loaded = {each: LoadedModel(certain[each], config) for each, config in configs.items() if config.is_of(certain[each])}
            models = {**self._models, **loaded}
            # BLS models are looked at in any case: they were unknown as long as a model was that has been
            # unloaded since.
            others = {each: models[each] for each in dependents_of(loaded.keys() | callers(models), models) - loaded.keys()}
            their_configs = await _configs(upstream, others)
            version = await _version(upstream)
            async with self._publishing:
                # Triton has been restarted meanwhile: what was asked of the old one says nothing about the
                # new one.
                if upstream is not self._upstream or version is None:
                    return
                self._models.update(loaded)
                self._overrides.update(overrides)
                for each, config in their_configs.items():
                    if (model := self._models.get(each)) is not None and model is others[each]:
                        self._models[each] = loaded[each] = replace(model, config=config)
                await self._publish(loaded.keys(), version)

    async def _publish(self, names: Iterable[str], version: str) -> None:
        """Publish the fingerprints of those models that are certain at this moment."""
        found = {each: fingerprint_of(each, self._models, server_version=version) for each in names}
        changes = {each: fingerprint for each, fingerprint in found.items() if fingerprint is not None}
        self._published |= {each: dependencies_of(each, self._models) for each in changes}
        if changes:
            await self._board.publish(changes)


def _unchanged(was: Models, now: Mapping[str, ModelContents]) -> dict[str, ModelContents]:
    """Return the models whose files are as they were loaded: Triton has those contents whether it has read
    them again or not.
    """
    return {each: model.contents for each, model in was.items() if model is not None and now.get(each) == model.contents}


def _may_have_been_ignored(was: LoadedModel | None, contents: ModelContents | None, *, is_step: bool) -> bool:
    """Whether Triton may have ignored the files that a load brought along, and still serve others.

    Over a model that is loaded, Triton 24.10 uses such files only if the configuration differs as well, and
    reports success in any case. As a step of an ensemble a model may have kept files that an earlier load
    brought, or not.
    """
    if was is not None and was.contents.comes_with_load and is_step:
        return True
    return contents is not None and contents.comes_with_load and (was is None or was.contents != contents)


async def _configs(upstream: Upstream, names: Iterable[str]) -> dict[str, LoadedConfig]:
    """Ask Triton for the configurations of models; those that are not ready are left out."""
    found: dict[str, LoadedConfig] = {}
    for each in names:
        try:
            found[each] = await upstream.control.loaded_config(each)
        except ControlPlaneError as exc:
            _log.info("answers are not kept: %s", exc, extra={"model": each})
    return found


async def _missing(upstream: Upstream, names: Collection[str]) -> set[str]:
    """Return those of the models that Triton says it does not have: with a failed ensemble it may have loaded steps."""
    try:
        index = await upstream.control.index()
    except ControlPlaneError:
        return set()
    return set(names) - {line.name for line in index if line.state is not ModelState.UNAVAILABLE}


async def _version(upstream: Upstream) -> str | None:
    try:
        return await upstream.control.server_version()
    except ControlPlaneError:
        return None
