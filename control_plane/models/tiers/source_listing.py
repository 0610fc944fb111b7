"""What the stores of models have, as far as it has been seen, and how fast they are. Used by `models/tiers/model_tiers`.

Stores are asked for their names every half minute, and then for the files of models that are warm and of some whose size is not known
yet: never because a request asks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from statistics import fmean

from control_plane.core.errors import ControlPlaneError, ModelNotFound, StoreUnavailable
from control_plane.core.model import MODEL_NAME, NAME_RULE
from control_plane.models.domain.model_source import ModelSource
from control_plane.models.ports import ModelStore
from control_plane.models.tiers.stoppable_threads import StoppableThreads

_log = logging.getLogger(__name__)

_REFRESH_S = 30.0
_DESCRIBED_AT_A_TIME = 50
_USUAL_BYTES = 256 << 20
"""Of a model while none has been seen."""
_USUAL_BYTES_PER_S = 50e6
_NEWEST_PART = 0.3
_LEAST_MEASURED_BYTES = 1 << 20
"""Smaller fetches tell of round trips, not of bandwidth."""
_ROUND_TRIPS_S = 0.3
"""Listing, reading and listing again, besides the bytes."""


class KnownSources:
    """By model; of two stores that have a name the first one counts."""

    def __init__(self, stores: Sequence[ModelStore], threads: StoppableThreads, taken: Callable[[], Collection[str]]) -> None:
        self._stores = stores
        self._threads = threads
        self._taken = taken
        self._listed: dict[str, list[str]] = {}
        self._store_of: dict[str, ModelStore] = {}
        self._described: dict[str, ModelSource] = {}
        self._bytes_per_s: dict[str, float] = {}
        self._reported: set[str] = set()

    async def keep_fresh(self, held: Callable[[], Collection[str]], *, every_s: float = _REFRESH_S) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            await self.refresh(held())

    async def refresh(self, held: Collection[str]) -> None:
        """Look once; a store that cannot be read is taken to have what it had."""
        await asyncio.gather(*map(self._list, self._stores))
        unknown = (name for name in self._store_of if name not in self._described)
        for name in [*(name for name in held if name in self._store_of), *islice(unknown, _DESCRIBED_AT_A_TIME)]:
            await self._describe(name)

    def names(self) -> Collection[str]:
        return self._store_of.keys()

    async def store_of(self, model: str) -> ModelStore:
        """Looks when it is not known yet. Raises ModelNotFound."""
        if not MODEL_NAME.fullmatch(model):
            raise ModelNotFound(f"{model[:255]!r} cannot be a model's name, which is {NAME_RULE}")
        if model not in self._store_of:
            self._store_of.update(await self._found(model))
        if model not in self._store_of:
            raise ModelNotFound(f"no model {model[:255]!r} in {', '.join(store.url for store in self._stores)}")
        return self._store_of[model]

    def version_of(self, model: str) -> str | None:
        """None: it has not been seen."""
        source = self._described.get(model)
        return source.version if source is not None else None

    def note(self, source: ModelSource) -> None:
        """It has just been seen."""
        self._described[source.name] = source

    def measured(self, store: ModelStore, size_bytes: int, took_s: float) -> None:
        if size_bytes >= _LEAST_MEASURED_BYTES and took_s > 0:
            known = self._bytes_per_s.get(store.url, size_bytes / took_s)
            self._bytes_per_s[store.url] = known + _NEWEST_PART * (size_bytes / took_s - known)

    def bytes_of(self, model: str) -> int | None:
        """None: it has not been seen."""
        source = self._described.get(model)
        return source.bytes if source is not None else None

    def expected_s(self, model: str, *, done_bytes: int) -> float:
        source, store = self._described.get(model), self._store_of.get(model)
        size = source.bytes if source is not None else self._usual_bytes()
        rate = self._bytes_per_s.get(store.url, _USUAL_BYTES_PER_S) if store is not None else _USUAL_BYTES_PER_S
        return _ROUND_TRIPS_S + max(0, size - done_bytes) / rate

    def close(self) -> None:
        for store in self._stores:
            store.close()

    async def _list(self, store: ModelStore) -> None:
        try:
            self._listed[store.url] = await self._threads.run(store.names)
        except StoreUnavailable as exc:
            _log.warning("%s", exc)
        self._assign()  # at once: another store may hang

    def _usual_bytes(self) -> float:
        return fmean(source.bytes for source in self._described.values()) if self._described else _USUAL_BYTES

    def _assign(self) -> None:
        taken, found = set(self._taken()), dict[str, ModelStore]()
        for store in self._stores:
            for name in self._listed.get(store.url, ()):
                if name in found or name in taken:
                    self._report(name, store, found.get(name))
                else:
                    found[name] = store
        self._store_of = found
        self._described = {name: source for name, source in self._described.items() if name in found}

    def _report(self, name: str, store: ModelStore, other: ModelStore | None) -> None:
        if name not in self._reported:
            self._reported.add(name)
            whose = f"in {other.url}" if other is not None else "in a model repository"
            _log.warning("model %s in %s has the name of one %s, which is the one that is served", name, store.url, whose)

    async def _found(self, model: str) -> dict[str, ModelStore]:
        """A model that has come since the stores were last asked. Raises StoreUnavailable where one that might have it cannot be."""
        for store in self._stores if model not in self._taken() else ():
            try:
                self.note(await self._threads.run(lambda stop, store=store: store.describe(model, stop)))  # type: ignore[misc]
            except ModelNotFound:
                continue
            return {model: store}
        return {}

    async def _describe(self, name: str) -> None:
        store = self._store_of[name]
        try:
            self.note(await self._threads.run(lambda stop: store.describe(name, stop)))
        except ControlPlaneError as exc:
            _log.warning("%s", exc)
