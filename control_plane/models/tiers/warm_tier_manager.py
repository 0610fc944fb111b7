"""Tiered storage of models: fetches models from cold stores to this machine's warm tier, evicts within its
bytes, estimates times.

Called by whoever is about to load a model. Fetches are a singleflight: each is a task of its own with any
number of waiters. A fetch whose waiters have all left goes on, since its result is what the next one would
wait for. (A fetch that stalls ends: every read of a store has a deadline.)
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from control_plane.concurrency.shared_task import join
from control_plane.concurrency.task_owner import TaskOwner
from control_plane.core.errors import ControlPlaneError, DeadlineExceeded, ModelLoadFailed, Overloaded, StoreUnavailable
from control_plane.models.domain.description import Tier
from control_plane.models.domain.model_source import ModelSource, WarmCopy
from control_plane.models.ports import ModelStore, MoveObserver, WarmTier
from control_plane.models.tiers.model_fetch import ModelFetch
from control_plane.models.tiers.stoppable_threads import StoppableThreads
from control_plane.models.tiers.store_catalogue import StoreCatalogue

_log = logging.getLogger(__name__)

_MODELS_AT_ONCE = 4
_THREADS = 12
_LISTING_TIMEOUT_S = 10.0
_VERIFIED_BYTES_PER_S = 500e6
"""Speed of verifying a copy at its first use by this process (measured: 0.8 to 2 s for a GiB, one thread)."""

StepsOf = Callable[[Path], Sequence[str]]


class WarmTierManager:
    """Warm tier manager: singleflight fetches, eviction of unpinned copies, verification. `run` owns the
    fetches' tasks.
    """

    def __init__(
        self,
        *,
        stores: Sequence[ModelStore],
        warm: WarmTier,
        steps_of: StepsOf,
        observer: MoveObserver,
        worth: Callable[[str], float] | None = None,
        taken: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """`steps_of` returns the models that the model in a folder needs. `worth` ranks copies for eviction,
        the least first; without it the least recently used is evicted. `taken` are names that models of
        stores may not have, since other sources have models of these names.
        """
        self._warm = warm
        self._steps_of = steps_of
        self._observer = observer
        self._taken = taken
        self._worth = worth or (lambda name: self._used[name])
        self._threads = StoppableThreads(_THREADS, name="model-tiers")
        self._sources = StoreCatalogue(stores, self._threads, taken)
        self._tasks = TaskOwner("models cannot be fetched")
        self._copies: dict[str, WarmCopy] = {}
        self._needs: dict[str, tuple[str, ...]] = {}
        self._sound: set[str] = set()
        """Models whose digests this process has verified."""
        self._used: Counter[str] = Counter()
        self._uses = 0
        self._wanted: Counter[str] = Counter()
        self._pins: Counter[str] = Counter()
        self._reserved: dict[str, int] = {}
        self._under_way: dict[str, asyncio.Task[Exception | None]] = {}
        self._fetches: dict[str, ModelFetch] = {}
        self._turns = asyncio.Semaphore(_MODELS_AT_ONCE)
        self._room = asyncio.Lock()

    async def open(self) -> None:
        """Take over the copies that are there, and list the stores, for at most ten seconds. Raises
        StartupError.
        """
        for copy in await self._threads.run(lambda _: self._warm.open()):
            self._copies[copy.name] = copy
            self._note_use(copy.name)
        # A folder of this machine has a model of that name since: the copy must not stand in for it.
        for name in self._copies.keys() & set(self._taken()):
            await self._evict(name)
        try:
            async with asyncio.timeout(_LISTING_TIMEOUT_S):
                await self._sources.refresh(self._copies)
        except TimeoutError:
            _log.warning("the stores of models have not answered in %g s; what is warm is served", _LISTING_TIMEOUT_S)

    async def run(self) -> None:
        """Own the fetches' tasks and list the stores every half minute, until cancelled; partial copies then
        stay for the next process.
        """
        async with self._tasks.open():
            await self._sources.keep_fresh(lambda: self._copies)

    async def close(self) -> None:
        """Close stores, threads and the tier; call it after `run` has ended."""
        await self._threads.run(lambda _: self._sources.close())
        self._threads.close()
        self._warm.close()

    async def refresh(self) -> None:
        """List the stores now."""
        await self._sources.refresh(self._copies)

    def names(self) -> list[str]:
        """Return every model that is warm or was seen in a store."""
        return sorted(self._copies.keys() | self._sources.names())

    def tier_of(self, model: str) -> Tier:
        """Return COLD if the model would have to be fetched, otherwise WARM; models of other sources than
        stores are always here.

        Whether a model is loaded (HOT) is not known here.
        """
        is_here = model in self._copies or model not in self._sources.names()
        return Tier.WARM if is_here else Tier.COLD

    def expected_fetch_s(self, model: str) -> float:
        """Estimate how long `ensure_warm` would take now, without waiting for other fetches; 0 for a copy
        that is verified.
        """
        if self.tier_of(model) is Tier.WARM:
            is_unverified = model in self._copies and model not in self._sound
            return self._copies[model].bytes / _VERIFIED_BYTES_PER_S if is_unverified else 0.0
        fetch = self._fetches.get(model)
        return self._sources.expected_s(model, done_bytes=fetch.done_bytes if fetch is not None else 0)

    def bytes_to_fetch(self, model: str) -> int | None:
        """Return the bytes that are left to fetch: 0 if the model is warm, None if its size is unknown."""
        size = 0 if self.tier_of(model) is Tier.WARM else self._sources.bytes_of(model)
        fetch = self._fetches.get(model)
        return size if not size or fetch is None else max(0, size - fetch.done_bytes)

    @contextmanager
    def pinned(self, model: str) -> Iterator[None]:
        """Pin the copies of a model and of the models it needs: in this context they are neither evicted nor
        replaced.

        Enter it right after `ensure_warm` has returned, without an await in between, in which the copy could
        be evicted.
        """
        self._pins[model] += 1
        try:
            yield
        finally:
            self._pins[model] -= 1
            self._pins += Counter()  # drops what is at zero

    async def ensure_warm(self, model: str, *, deadline_s: float) -> Path:
        """Fetch a model and every model that it needs, and return its folder once all copies are verified.

        `deadline_s` is by the loop's clock. A copy whose source has changed is fetched anew, unless it is
        pinned.

        Raises:
            ModelNotFound: no store has the model.
            ModelLoadFailed: it cannot be fetched whole, or is larger than the tier.
            StoreUnavailable: the store does not answer, or the disk of the warm tier is full.
            Overloaded: pinned copies leave no room.
            DeadlineExceeded: the fetch takes longer; it goes on.
        """
        done: dict[str, None] = {}
        open_ = [model]
        try:
            async with asyncio.timeout_at(deadline_s):
                while open_:
                    each = open_.pop()
                    if each not in done:
                        done[each] = None
                        # From here to the end: a step must not be evicted while the next one is being fetched.
                        self._wanted[each] += 1
                        await self._join(each)
                        open_ += [step for step in self._needs.get(each, ()) if self._is_ours(step)]
        except TimeoutError as exc:
            raise DeadlineExceeded(f"model {model!r} is still being fetched; try again in {self.expected_fetch_s(model):.0f} s") from exc
        finally:
            self._wanted -= Counter(done.keys())
        return self._warm.path(model)

    def _is_ours(self, model: str) -> bool:
        return model in self._copies or model in self._sources.names()

    async def _join(self, model: str) -> None:
        """Join the model's fetch, starting it if there is none. Raises what it raises; a cancellation ends
        only the wait.
        """
        task = self._under_way.get(model)
        if task is None:
            task = self._under_way[model] = self._tasks.create_task(self._outcome(model), name=f"warm-{model}")
            task.add_done_callback(lambda _: self._under_way.pop(model, None))
        await join(task)

    async def _outcome(self, model: str) -> Exception | None:
        """Make a model warm, and return the error if that fails, as `shared_task.outcome` does."""
        try:
            if not await self._is_usable(model):
                async with self._turns:
                    await self._fetch_or_keep(model)
            self._note_use(model)
        except ControlPlaneError as exc:
            return exc
        except Exception as exc:
            _log.exception("a model could not be fetched", extra={"model": model})
            return ModelLoadFailed(f"model {model!r} could not be fetched: {type(exc).__name__}")
        return None

    async def _is_usable(self, model: str) -> bool:
        """Whether a copy is here, intact, verified by this process, and of the store's present version as far
        as that is known.

        A damaged copy is evicted.
        """
        copy = self._copies.get(model)
        if copy is None:
            return False
        is_sound = await self._threads.run(lambda _: self._warm.use(copy))
        if is_sound and model not in self._sound:
            is_sound = await self._threads.run(lambda stop: self._warm.is_sound(copy, stop))
        # A damaged file is not repaired: which bytes are wrong only the store can tell.
        if not is_sound:
            _log.error("the warm copy of a model is damaged; it is fetched again", extra={"model": model})
            await self._evict(model)
            return False
        if model not in self._sound:
            await self._note_sound(model)
        return self._sources.version_of(model) in (None, copy.version) or self._is_pinned(model)

    async def _note_sound(self, model: str) -> None:
        self._needs[model] = tuple(await self._threads.run(lambda _: self._steps_of(self._warm.path(model))))
        self._sound.add(model)

    async def _fetch_or_keep(self, model: str) -> None:
        """Fetch a model; if that fails and an older copy is intact, serve the older copy."""
        try:
            await self._fetch(model)
        except (StoreUnavailable, Overloaded, ModelLoadFailed) as exc:
            if model not in self._sound:
                raise
            _log.warning("the source of a model has changed and cannot be fetched; what is warm is served: %s", exc, extra={"model": model})

    async def _fetch(self, model: str) -> None:
        """Fetch a model from its store, and record its copy and the bandwidth."""
        store = await self._sources.store_of(model)
        fetch = self._fetches[model] = ModelFetch(model, store=store, warm=self._warm, threads=self._threads)
        now_s = asyncio.get_running_loop().time
        began_s = now_s()

        async def make_room(source: ModelSource) -> None:
            nonlocal began_s
            self._sources.note(source)
            await self._make_room(source)
            began_s = now_s()  # the time to list and to evict is not the store's bandwidth

        try:
            copy = await fetch.run(make_room)
        except ControlPlaneError:
            self._observer.move_failed(model, source=Tier.COLD, target=Tier.WARM)
            raise
        finally:
            del self._fetches[model]
            self._reserved.pop(model, None)
        self._copies[model] = copy
        await self._note_sound(model)
        took_s = now_s() - began_s
        self._sources.measured(store, fetch.new_bytes, took_s)
        self._observer.moved(model, source=Tier.COLD, target=Tier.WARM, size_bytes=copy.bytes, took_s=took_s)

    async def _make_room(self, source: ModelSource) -> None:
        """Reserve a model's bytes, evicting the copies of least worth.

        Raises ModelLoadFailed (the model is larger than the tier), Overloaded (copies in use leave no room).
        """
        if source.bytes > self._warm.max_bytes:
            raise ModelLoadFailed(
                f"model {source.name!r} has {source.bytes} bytes and the warm tier {self._warm.max_bytes}: raise --warm-bytes"
            )
        # One at a time: two that evict together would both count the same bytes as free, and no fetch of a
        # model may begin while its old copy is being removed.
        async with self._room:
            self._reserved.pop(source.name, None)
            fetched = list(self._fetches)
            over = self._over_by(source.bytes) + await self._threads.run(lambda _: self._warm.partial_bytes(fetched))
            if over > 0:
                await self._threads.run(lambda _: self._warm.drop_partials(fetched))
            self._require_room(source)
            while self._over_by(source.bytes) > 0:
                await self._evict(self._next_victim(source))
            self._reserved[source.name] = source.bytes

    def _over_by(self, new_bytes: int) -> int:
        held = sum(copy.bytes for copy in self._copies.values())
        return held + sum(self._reserved.values()) + new_bytes - self._warm.max_bytes

    def _require_room(self, source: ModelSource) -> None:
        """Raise Overloaded if evicting all that is free would not make enough room: then nothing is evicted
        in vain.
        """
        over = self._over_by(source.bytes) - sum(self._copies[name].bytes for name in self._evictable(source))
        if over > 0:
            raise Overloaded(f"no room in the warm tier for model {source.name!r}: {over} bytes too many are held by models in use")

    def _next_victim(self, source: ModelSource) -> str:
        """Return the next copy to evict: an older copy of the same model first, then that of least worth.

        It is asked for each eviction anew, since another copy may come into use while one is removed. Raises
        Overloaded.
        """
        free = self._evictable(source)
        if not free:
            raise Overloaded(f"no room in the warm tier for model {source.name!r}: all that it holds is in use")
        return min(free, key=lambda name: (name != source.name, self._worth(name)))

    def _evictable(self, source: ModelSource) -> list[str]:
        """Return the models whose copies may be evicted: neither pinned nor wanted nor being fetched."""
        in_use = (self._wanted.keys() | self._under_way.keys()) - {source.name}
        # Not `_is_pinned` for each: thousands of copies may be here while hundreds are pinned.
        pinned = self._pins.keys() | {step for each in self._pins for step in self._needs.get(each, ())}
        return [name for name in self._copies if name not in in_use and name not in pinned]

    async def _evict(self, model: str) -> None:
        now_s = asyncio.get_running_loop().time
        began_s = now_s()
        copy = self._copies.pop(model)
        self._sound.discard(model)
        await self._threads.run(lambda _: self._warm.remove(model))
        _log.info("the warm copy of a model is removed", extra={"model": model})
        self._observer.moved(model, source=Tier.WARM, target=Tier.COLD, size_bytes=copy.bytes, took_s=now_s() - began_s)

    def _is_pinned(self, model: str) -> bool:
        return model in self._pins or any(model in self._needs.get(pinned, ()) for pinned in self._pins)

    def _note_use(self, model: str) -> None:
        self._uses += 1
        self._used[model] = self._uses
