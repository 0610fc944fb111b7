"""What is loaded in Triton, with certainty or not at all: by this, answers that were given before are found again or not.

`models/model_service` loads and unloads through here. What makes it certain:

- Before a change begins, its model, an ensemble's steps and every ensemble that needs one of them are unknown in every process;
  afterwards they are known as other objects, so that no answer that was under way meanwhile is kept.
- A model whose code may call others needs every model, since nobody knows which it calls: any change makes it unknown, and
  another one; it stays unknown while anything is.
- A load counts when what it reads was the same before and after it, and Triton's own configuration looks in the same places.
- Triton reads anew what has newer times. Where contents differ from what it has, also outside the model's folder, and where
  nobody knows what it has, the placed model is made to look changed.
- Changes that touch the same model follow each other.

What a change that fails, times out or is cancelled has touched stays unknown until a load of it succeeds.
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
    dependents_of,
    fingerprint_of,
    needed_by,
    with_steps,
)
from control_plane.core.model import ModelOverride
from control_plane.models.ports import FingerprintBoard, ModelReading
from control_plane.triton.ports import Upstream

_log = logging.getLogger(__name__)


class LoadedContents:
    """The fingerprints of what is loaded in one Triton that nobody else loads models into."""

    def __init__(self, reading: ModelReading, board: FingerprintBoard) -> None:
        self._reading = reading
        self._board = board
        self._upstream: Upstream | None = None
        self._models: dict[str, LoadedModel | None] = {}
        """Those that Triton may have; None where nobody knows what it has."""
        self._overrides: dict[str, ModelOverride | None] = {}
        self._published: dict[str, set[str]] = {}
        """What each that is known needs, as of then."""
        self._publishing = asyncio.Lock()
        self._settling = asyncio.Lock()
        self._changing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def begin(self, upstream: Upstream) -> None:
        """This Triton has just started and has nothing loaded; what is under way with another counts no longer."""
        async with self._publishing:
            self._upstream = upstream
            self._models.clear()
            self._overrides.clear()
            had = set(self._published)
            await self._publish_unknown(had)
            await self._board.forget(had)

    async def load(self, upstream: Upstream, name: str, override: ModelOverride | None, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work`, which loads what is placed, and make known what it has loaded. Raises what it raises, ModelLoadFailed."""
        async with self._alone(lambda: self._with_steps(name, override)) as names:
            was = {each: self._models[each] for each in names if each in self._models}
            overrides = {**self._overrides, name: override}
            await self._doubt(names)
            await self._board.doubt(names)
            before = await self._read(names, overrides)
            for each, model in was.items():
                await self._have_it_read(each, model, before.get(each))
            try:
                await work()
            except ModelLoadFailed:
                await self._doubt(await self._with_steps(name, override) - names)
                await self._board.forget(names - was.keys())
                await self._settle(upstream, _unchanged(was, await self._read(names - {name}, overrides)), {})
                raise
            # What has become a step of it meanwhile may have been loaded as well.
            await self._doubt(await self._with_steps(name, override) - names)
            after = await self._read(names, overrides)
            unsure = {each for each, model in was.items() if _may_have_been_ignored(model, before.get(each), is_step=each != name)}
            certain = {each: contents for each, contents in after.items() if contents == before.get(each) and each not in unsure}
            await self._settle(upstream, certain, {name: override})

    async def unload(self, upstream: Upstream, name: str, *, with_steps: bool, work: Callable[[], Awaitable[Collection[str]]]) -> None:
        """Do `work`, which unloads the model and says which models Triton has unloaded. Raises what it raises."""
        async with self._alone(lambda: self._to_unload(name, with_steps)) as names:
            was = {each: model.contents for each in names if (model := self._models.get(each)) is not None}
            await self._doubt(names)
            gone = {name, *await work()}
            for each in gone & names:
                self._models.pop(each, None)
                self._overrides.pop(each, None)
            await self._board.forget(gone)
            await self._settle(upstream, {each: contents for each, contents in was.items() if each not in gone}, {})

    def dependents_of(self, name: str) -> set[str]:
        """The models loaded here that need this one."""
        return dependents_of((name,), self._models)

    @asynccontextmanager
    async def _alone(self, find: Callable[[], Awaitable[set[str]]]) -> AsyncIterator[set[str]]:
        """While nobody else changes one of those that are found when it is one's turn; in one order, so that nobody waits in a circle."""
        names = set[str]()
        async with AsyncExitStack() as held:
            while not (found := await find()) <= names:
                names |= found
                await held.aclose()
                for lock in [self._changing.setdefault(name, asyncio.Lock()) for name in sorted(names)]:
                    await held.enter_async_context(lock)
            yield names

    async def _to_unload(self, name: str, with_steps: bool) -> set[str]:
        return await self._with_steps(name, self._overrides.get(name)) if with_steps else {name}

    async def _with_steps(self, name: str, override: ModelOverride | None) -> set[str]:
        """What the load may change: by the configurations as they are, and as they were when they were loaded."""
        found = with_steps(name, self._models)
        try:
            return found.union(await asyncio.to_thread(self._reading.with_steps, name, override))
        except ModelLoadFailed:
            return found  # Triton will say so

    async def _doubt(self, names: Collection[str]) -> None:
        self._models.update(dict.fromkeys(names))
        async with self._publishing:
            needing = dependents_of(names, self._models)  # of a model that is new, those that call others
            doubtful = [each for each, needed in self._published.items() if each in needing or not needed.isdisjoint(names)]
            await self._publish_unknown(doubtful)

    async def _publish_unknown(self, names: Iterable[str]) -> None:
        changes = dict.fromkeys(names)
        if changes:
            await self._board.publish(changes)
        for each in changes:
            del self._published[each]

    async def _read(self, names: Iterable[str], overrides: Mapping[str, ModelOverride | None]) -> dict[str, ModelContents]:
        """Of those that can be read."""
        found: dict[str, ModelContents] = {}
        for each in names:
            try:
                found[each] = await asyncio.to_thread(self._reading.read, each, overrides.get(each))
            except ModelLoadFailed as exc:
                _log.info("answers are not kept: %s", exc, extra={"model": each})
        return found

    async def _have_it_read(self, name: str, was: LoadedModel | None, contents: ModelContents | None) -> None:
        if contents is not None and not contents.is_brought and (was is None or was.contents != contents):
            await asyncio.to_thread(self._reading.make_look_changed, name)

    async def _settle(
        self, upstream: Upstream, certain: Mapping[str, ModelContents], overrides: Mapping[str, ModelOverride | None]
    ) -> None:
        """Make known what is certain now, and all that needs it and that Triton serves; each goes on from what the last one found."""
        async with self._settling:
            configs = await _configs(upstream, certain)
            loaded = {each: LoadedModel(certain[each], config) for each, config in configs.items() if config.is_of(certain[each])}
            models = {**self._models, **loaded}
            # Those that call others need what has been unloaded no longer.
            others = {each: models[each] for each in dependents_of(loaded.keys() | callers(models), models) - loaded.keys()}
            their_configs = await _configs(upstream, others)
            version = await _version(upstream)
            async with self._publishing:
                if upstream is not self._upstream or version is None:
                    return
                self._models.update(loaded)
                self._overrides.update(overrides)
                for each, config in their_configs.items():
                    if (model := self._models.get(each)) is not None and model is others[each]:
                        self._models[each] = loaded[each] = replace(model, config=config)
                await self._publish(loaded.keys(), version)

    async def _publish(self, names: Iterable[str], version: str) -> None:
        """Those of them that are certain at this moment."""
        found = {each: fingerprint_of(each, self._models, server_version=version) for each in names}
        changes = {each: fingerprint for each, fingerprint in found.items() if fingerprint is not None}
        self._published |= {each: needed_by(each, self._models) for each in changes}
        if changes:
            await self._board.publish(changes)


def _unchanged(was: Models, now: Mapping[str, ModelContents]) -> dict[str, ModelContents]:
    """Those of which Triton has the same contents whether it has read them again or not."""
    return {each: model.contents for each, model in was.items() if model is not None and now.get(each) == model.contents}


def _may_have_been_ignored(was: LoadedModel | None, contents: ModelContents | None, *, is_step: bool) -> bool:
    """Whether Triton may still have other files than it was to load, where files are or were brought along.

    Over a loaded model, 24.10 takes them only with another configuration, and answers that it has in any case; and as an
    ensemble's step a model may have kept them or not.
    """
    if was is not None and was.contents.is_brought and is_step:
        return True
    return contents is not None and contents.is_brought and (was is None or was.contents != contents)


async def _configs(upstream: Upstream, names: Iterable[str]) -> dict[str, LoadedConfig]:
    """Of those that are ready."""
    found: dict[str, LoadedConfig] = {}
    for each in names:
        try:
            found[each] = await upstream.control.loaded_config(each)
        except ControlPlaneError as exc:
            _log.info("answers are not kept: %s", exc, extra={"model": each})
    return found


async def _version(upstream: Upstream) -> str | None:
    try:
        return await upstream.control.server_version()
    except ControlPlaneError:
        return None
