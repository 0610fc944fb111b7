"""One model's way from its store to the warm tier: tried again where it broke off, and from the start when its source changed.

Called by `models/tiers/model_tiers`, which has made room for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from control_plane.core.errors import ModelLoadFailed, Overloaded, StoreUnavailable
from control_plane.models.domain.digest_lists import is_list, read_list
from control_plane.models.domain.model_source import ModelSource, SourceFile, WarmCopy
from control_plane.models.ports import ModelStore, PartialCopy, Stop, WarmTier
from control_plane.models.tiers.stoppable_threads import StoppableThreads

_log = logging.getLogger(__name__)

_MOST_STARTS = 4
"""Of one fetch, when its source keeps changing or what comes is damaged."""
_MOST_BREAKS = 5
"""One after the other, without a byte between them."""
_FIRST_DELAY_S = 0.2
_LONGEST_LIST_BYTES = 1 << 20
_FILES_AT_ONCE = 4


class ModelFetch:
    """The fetch of one model; `done_bytes` says how far it is."""

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
        """Brought by this process."""
        return self._partial.new_bytes if self._partial is not None else 0

    async def run(self, make_room: Callable[[ModelSource], Awaitable[None]]) -> WarmCopy:
        """Fetch it whole, verify it and put it in its place.

        Raises: StoreUnavailable (what has come stays, and is gone on with by the next), ModelNotFound, ModelLoadFailed, Overloaded.
        Cancelling leaves what has come too.
        """
        starts = breaks = 0
        while True:
            before = self.new_bytes
            try:
                return await self._try(make_room)
            except ModelLoadFailed as exc:
                starts += 1
                if starts == _MOST_STARTS or not exc.is_passing:
                    raise
                _log.warning("the fetch of a model starts over: %s", exc, extra={"model": self._name})
            except StoreUnavailable as exc:
                breaks = 1 if self.new_bytes > before else breaks + 1
                if breaks == _MOST_BREAKS:
                    raise
                _log.warning("the fetch of a model broke off and goes on: %s", exc, extra={"model": self._name})
                await asyncio.sleep(self._first_delay_s * 2**breaks)

    async def _try(self, make_room: Callable[[ModelSource], Awaitable[None]]) -> WarmCopy:
        source = await self._describe()
        if self._partial is None or source.version != self._version:
            await make_room(source)
            self._partial, self._version = await self._threads.run(lambda _: self._warm.begin(source)), source.version
        digests = await self._listed_digests(source)
        try:
            await self._bring(self._partial, source.with_digests(digests))
            if (await self._describe()).version != source.version:
                raise ModelLoadFailed(f"model {self._name!r} in {self._store.url} has changed while it was fetched", is_passing=True)
            partial = self._partial
            return await self._threads.run(lambda _: partial.finish())
        except Overloaded:
            await self._threads.run(lambda _: self._warm.drop_partial(self._name))
            raise

    async def _describe(self) -> ModelSource:
        return await self._threads.run(lambda stop: self._store.describe(self._name, stop))

    async def _listed_digests(self, source: ModelSource) -> dict[str, str]:
        """Raises ModelLoadFailed: a list cannot be read, or names what is not there (yet)."""
        digests: dict[str, str] = {}
        for file in source.files:
            if is_list(file.path) and file.size <= _LONGEST_LIST_BYTES:
                digests |= await self._threads.run(self._read_list, file)
        present = {file.path for file in source.files}
        if missing := sorted(digests.keys() - present):
            raise ModelLoadFailed(
                f"model {self._name!r} in {self._store.url} is not complete: {missing[0]!r} is listed and not there", is_passing=True
            )
        return digests

    def _read_list(self, stop: Stop, file: SourceFile) -> dict[str, str]:
        text = b"".join(self._store.read(self._name, file.path, range(file.size), stop))
        try:
            return read_list(file.path, text)
        except ValueError as exc:
            raise ModelLoadFailed(
                f"{file.path} of model {self._name!r} in {self._store.url} cannot be read: {exc}", is_passing=True
            ) from exc

    async def _bring(self, partial: PartialCopy, source: ModelSource) -> None:
        """Raises the first error, once no thread is at it any more."""
        turns = asyncio.Semaphore(_FILES_AT_ONCE)

        async def bring(file: SourceFile) -> None:
            async with turns:
                await self._threads.run(self._bring_file, partial, file)

        try:
            async with asyncio.TaskGroup() as tasks:
                for file in source.files:
                    tasks.create_task(bring(file), name=f"fetch-{self._name}")
        except BaseExceptionGroup as errors:
            raise _worst(errors) from None

    def _bring_file(self, stop: Stop, partial: PartialCopy, file: SourceFile) -> None:
        partial.fetch(file, lambda span: self._store.read(self._name, file.path, span, stop), stop)


def _worst(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one to act by: what cannot be tried again, before what can; a group of a group there is none."""
    return min(errors.exceptions, key=lambda error: isinstance(error, StoreUnavailable) or getattr(error, "is_passing", False))
