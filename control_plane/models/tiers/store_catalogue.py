"""Catalogue of the cold stores: their models, versions and sizes as last listed, and their bandwidth. Used by
`models/tiers/warm_tier_manager`.

Stores are listed every half minute; then the files of models that are warm are listed, and of some whose size
is not known yet. A request alone never causes a listing of a store.
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
"""Assumed size of a model while none has been seen."""
_USUAL_BYTES_PER_S = 50e6
"""Assumed bandwidth of a store that has not been measured."""
_NEWEST_PART = 0.3
"""Weight of the newest fetch in the moving average of a store's bandwidth."""
_MIN_MEASURED_BYTES = 1 << 20
"""Least size of a fetch that counts for the bandwidth: smaller ones measure round trips."""
_ROUND_TRIPS_S = 0.3
"""Assumed time of a fetch besides the transfer: listing, first read and listing again."""


class StoreCatalogue:
    """Catalogue of models in several stores; if two stores have a model of one name the first store's
    counts.
    """

    def __init__(self, stores: Sequence[ModelStore], threads: StoppableThreads, taken: Callable[[], Collection[str]]) -> None:
        self._stores = stores
        self._threads = threads
        self._taken = taken
        self._listed: dict[str, list[str]] = {}
        self._store_of: dict[str, ModelStore] = {}
        self._described: dict[str, ModelSource] = {}
        self._mean_bytes: float | None = None
        """Mean size of the models in `_described`; None where that has changed since it was last asked for."""
        self._bytes_per_s: dict[str, float] = {}
        self._reported: set[str] = set()

    async def keep_fresh(self, held: Callable[[], Collection[str]], *, every_s: float = _REFRESH_S) -> None:
        """Refresh the catalogue periodically until cancelled; `held` returns the models that are warm."""
        while True:
            await asyncio.sleep(every_s)
            await self.refresh(held())

    async def refresh(self, held: Collection[str]) -> None:
        """List the stores once; a store that cannot be read is assumed to have what it had."""
        await asyncio.gather(*map(self._list, self._stores))
        unknown = (name for name in self._store_of if name not in self._described)
        for name in [*(name for name in held if name in self._store_of), *islice(unknown, _DESCRIBED_AT_A_TIME)]:
            await self._describe(name)

    def names(self) -> Collection[str]:
        return self._store_of.keys()

    async def store_of(self, model: str) -> ModelStore:
        """Return the store of a model, asking the stores for one that is not in the catalogue. Raises
        ModelNotFound, StoreUnavailable.
        """
        if not MODEL_NAME.fullmatch(model):
            raise ModelNotFound(f"{model[:255]!r} cannot be a model's name, which is {NAME_RULE}")
        if model not in self._store_of:
            self._store_of.update(await self._look_for(model))
        if model not in self._store_of:
            raise ModelNotFound(f"no model {model[:255]!r} in {', '.join(store.url for store in self._stores)}")
        return self._store_of[model]

    def version_of(self, model: str) -> str | None:
        """Return a model's version as last listed; None if it has not been seen."""
        source = self._described.get(model)
        return source.version if source is not None else None

    def note(self, source: ModelSource) -> None:
        """Record a listing that was just made."""
        self._described[source.name], self._mean_bytes = source, None

    def measured(self, store: ModelStore, size_bytes: int, took_s: float) -> None:
        """Update the moving average of a store's bandwidth with a fetch."""
        if size_bytes >= _MIN_MEASURED_BYTES and took_s > 0:
            known = self._bytes_per_s.get(store.url, size_bytes / took_s)
            self._bytes_per_s[store.url] = known + _NEWEST_PART * (size_bytes / took_s - known)

    def bytes_of(self, model: str) -> int | None:
        """Return a model's size as last listed; None if it has not been seen."""
        source = self._described.get(model)
        return source.bytes if source is not None else None

    def expected_s(self, model: str, *, done_bytes: int) -> float:
        """Estimate the seconds that a fetch takes of which `done_bytes` are here; an unseen model is assumed
        to be of average size.
        """
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
        self._assign()  # not after all stores have answered: another one may hang

    def _usual_bytes(self) -> float:
        # Asked for each model that has not been seen, of which there may be thousands beside as many that have.
        mean_bytes = self._mean_bytes
        if mean_bytes is None:
            sizes = [source.bytes for source in list(self._described.values())]  # a list: a node asks in a thread
            mean_bytes = self._mean_bytes = fmean(sizes or [_USUAL_BYTES])
        return mean_bytes

    def _assign(self) -> None:
        """Assign each name to the first store that lists it, and forget listings of models that are gone."""
        taken, found = set(self._taken()), dict[str, ModelStore]()
        for store in self._stores:
            for name in self._listed.get(store.url, ()):
                if name in found or name in taken:
                    self._report(name, store, found.get(name))
                else:
                    found[name] = store
        self._store_of = found
        self._described, self._mean_bytes = {name: source for name, source in self._described.items() if name in found}, None

    def _report(self, name: str, store: ModelStore, other: ModelStore | None) -> None:
        if name not in self._reported:
            self._reported.add(name)
            whose = f"in {other.url}" if other is not None else "in a model repository"
            _log.warning("model %s in %s has the name of one %s, which is the one that is served", name, store.url, whose)

    async def _look_for(self, model: str) -> dict[str, ModelStore]:
        """Look for a model that came after the last listing.

        Raises StoreUnavailable if a store before the one that has it cannot be asked: that store might have
        the model too.
        """
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
