"""Fetch of one model from its cold store to the warm tier: resumed after a broken connection, restarted after
a change of the source.

Called by `models/tiers/warm_tier_manager`, which makes room for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from control_plane.core.errors import ModelLoadFailed, StoreUnavailable
from control_plane.models.domain.digest_lists import is_list, read_list
from control_plane.models.domain.model_source import ModelSource, SourceFile, WarmCopy
from control_plane.models.ports import ModelStore, PartialCopy, Stop, WarmTier
from control_plane.models.tiers.stoppable_threads import StoppableThreads

_log = logging.getLogger(__name__)

_MAX_STARTS = 4
"""Starts of one fetch, where its source keeps changing or its files come damaged."""
_MAX_BREAKS = 5
"""Broken reads in a row that brought no bytes, after which the store counts as away."""
_FIRST_DELAY_S = 0.2
_LONGEST_LIST_BYTES = 1 << 20
_FILES_AT_ONCE = 4


class ModelFetch:
    """Resumable fetch of one model; `done_bytes` says how far it is."""

    def __init__(
        self, name: str, *, store: ModelStore, warm: WarmTier, threads: StoppableThreads, first_delay_s: float = _FIRST_DELAY_S
    ) -> None:
        self._name = name
        self._store = store
        self._warm = warm
        self._threads = threads
        self._first_delay_s = first_delay_s
        self._partial: PartialCopy | None = None
        self._version = ""

    @property
    def done_bytes(self) -> int:
        return self._partial.done_bytes if self._partial is not None else 0

    @property
    def new_bytes(self) -> int:
        """Bytes fetched by this process."""
        return self._partial.new_bytes if self._partial is not None else 0

    async def run(self, make_room: Callable[[ModelSource], Awaitable[None]]) -> WarmCopy:
        """Fetch the whole model, verify it and install it in the warm tier; `make_room` is awaited once its
        size is known.

        Raises StoreUnavailable, ModelNotFound, ModelLoadFailed, and Overloaded where `make_room` does. After
        StoreUnavailable (but of a full disk) or a cancellation the bytes that have come stay, and the next
        fetch resumes from them.
        """
        starts = breaks = 0
        while True:
            before = self.new_bytes
            try:
                return await self._try(make_room)
            except ModelLoadFailed as exc:
                starts += 1
                if starts == _MAX_STARTS or not exc.is_transient:
                    raise
                _log.warning("the fetch of a model starts over: %s", exc, extra={"model": self._name})
            except StoreUnavailable as exc:
                # Progress, however little, resets the count: a slow store is not one that is away.
                breaks = 1 if self.new_bytes > before else breaks + 1
                if exc.is_full or breaks == _MAX_BREAKS:
                    raise
                _log.warning("the fetch of a model broke off and goes on: %s", exc, extra={"model": self._name})
                await asyncio.sleep(self._first_delay_s * 2**breaks)

    async def _try(self, make_room: Callable[[ModelSource], Awaitable[None]]) -> WarmCopy:
        """Fetch the model once: list, make room, fetch, list again, install."""
        source = await self._describe()
        if self._partial is None or source.version != self._version:
            await make_room(source)
            self._partial, self._version = await self._threads.run(lambda _: self._warm.start_fetch(source)), source.version
        digests = await self._listed_digests(source)
        try:
            await self._fetch_files(self._partial, source.with_digests(digests))
            # Files of two versions must not be mixed: a listing that is unchanged afterwards proves that they
            # are of one.
            if (await self._describe()).version != source.version:
                raise ModelLoadFailed(f"model {self._name!r} in {self._store.url} has changed while it was fetched", is_transient=True)
            partial = self._partial
            return await self._threads.run(lambda _: partial.finish())
        except StoreUnavailable as exc:
            if exc.is_full:  # the partial copy itself takes room that others need
                await self._threads.run(lambda _: self._warm.drop_partial(self._name))
            raise

    async def _describe(self) -> ModelSource:
        return await self._threads.run(lambda stop: self._store.describe(self._name, stop))

    async def _listed_digests(self, source: ModelSource) -> dict[str, str]:
        """Read the digest lists of a listing. Raises ModelLoadFailed: one cannot be read, or names a file
        that is not there (yet).
        """
        digests: dict[str, str] = {}
        for file in source.files:
            if is_list(file.path) and file.size <= _LONGEST_LIST_BYTES:
                digests |= await self._threads.run(self._read_list, file)
        present = {file.path for file in source.files}
        if missing := sorted(digests.keys() - present):
            raise ModelLoadFailed(
                f"model {self._name!r} in {self._store.url} is not complete: {missing[0]!r} is listed and not there", is_transient=True
            )
        return digests

    def _read_list(self, stop: Stop, file: SourceFile) -> dict[str, str]:
        text = b"".join(self._store.read(self._name, file.path, range(file.size), stop))
        try:
            return read_list(file.path, text)
        except ValueError as exc:
            raise ModelLoadFailed(
                f"{file.path} of model {self._name!r} in {self._store.url} cannot be read: {exc}", is_transient=True
            ) from exc

    async def _fetch_files(self, partial: PartialCopy, source: ModelSource) -> None:
        """Fetch all files, some at a time; after an error the others are ended before it is raised."""
        turns = asyncio.Semaphore(_FILES_AT_ONCE)

        async def bring(file: SourceFile) -> None:
            async with turns:
                await self._threads.run(self._fetch_file, partial, file)

        try:
            async with asyncio.TaskGroup() as tasks:
                for file in source.files:
                    tasks.create_task(bring(file), name=f"fetch-{self._name}")
        except BaseExceptionGroup as errors:
            raise _worst(errors) from None

    def _fetch_file(self, stop: Stop, partial: PartialCopy, file: SourceFile) -> None:
        partial.fetch(file, lambda span: self._store.read(self._name, file.path, span, stop), stop)


def _worst(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error to act on: one that cannot be retried comes before one that can. Groups are not nested
    here.
    """
    return min(errors.exceptions, key=_may_pass)


def _may_pass(error: BaseException) -> bool:
    return not error.is_full if isinstance(error, StoreUnavailable) else getattr(error, "is_transient", False)
