"""Input of jobs from where callers have it, and output to where they want it; the latter implements `jobs/ports.Courier`.

The input is read piece by piece when the job is submitted, and kept with it as an upload is: what happens to the file
afterwards changes nothing. The output is written once the job has ended, before its webhook is sent.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from control_plane.core.errors import InvalidRequest, PayloadTooLarge, StoreUnavailable
from control_plane.jobs.domain.delivery import Delivery, delivered
from control_plane.jobs.domain.job import Blob, Job
from control_plane.jobs.files.domain.place import Place, Prefix, place_of
from control_plane.jobs.files.ports import FileStore, FileVersion, NoSuchFile
from control_plane.jobs.ports import NotDelivered, SpoolDamaged

_log = logging.getLogger(__name__)

_TIMEOUT_S = 100.0
"""Seconds for which a file is read or written; a delivery's lease is longer."""
_PIECE_BYTES = 1 << 20
_LARGE_BYTES, _LARGE_AT_ONCE = 1 << 20, 4
_BUDGET_TIMEOUT_S = 60.0
_NO_INPUT = "there is no such input file"
_SWEEP_EVERY_S = 3600.0
_UNFINISHED_S = 3600.0
"""Age from which a file that is not whole is nobody's any more: longer than any is written for."""


class Budget(Protocol):
    """Memory for bodies: `frontends/common/body_budget`."""

    async def acquire(self, size_bytes: int, timeout_s: float) -> None: ...

    def release(self, size_bytes: int) -> None: ...


class CallersFiles:
    """Application service for the input and output of jobs in folders and object stores that administrators allow."""

    def __init__(
        self,
        prefixes: Sequence[Prefix],
        open_store: Callable[[Prefix], FileStore],
        *,
        read_result: Callable[[Blob], Awaitable[bytes]],
    ) -> None:
        """`open_store` opens a store without a request; `read_result` reads a result from the spool. Raises what `open_store`
        raises.
        """
        self._prefixes = prefixes
        self._read_result = read_result
        self._stores = {root: open_store(root) for root in {prefix.root for prefix in prefixes}}
        self._large = asyncio.Semaphore(_LARGE_AT_ONCE)

    def accepted_output(self, tenant: str, url: str) -> Delivery:
        """Return the output of a job that is submitted. Raises InvalidRequest: it may not be written there."""
        url = url.rstrip("/")
        place_of(self._prefixes, tenant, url)
        return Delivery(url)

    @asynccontextmanager
    async def input(
        self, tenant: str, url: str, *, max_bytes: int, budget: Budget, require_room: Callable[[int], Awaitable[None]]
    ) -> AsyncIterator[CallersInput]:
        """Open a caller's file, and hold memory for pieces of it within the block; `require_room` is asked before, with its size.

        Raises InvalidRequest, PayloadTooLarge, Overloaded, StoreUnavailable, and what `require_room` raises.
        """
        store, place = self._at(tenant, url)
        try:
            async with _limited(_deadline_s()):
                version = await store.version(place.segments)
        except NoSuchFile as exc:
            raise InvalidRequest(_NO_INPUT) from exc
        if version.size_bytes > max_bytes:
            raise PayloadTooLarge(f"the input has {version.size_bytes} bytes, and {max_bytes} are allowed")
        await require_room(version.size_bytes)
        held = min(version.size_bytes, 2 * _PIECE_BYTES)  # one that is written, and the next
        await budget.acquire(held, _BUDGET_TIMEOUT_S)
        try:
            yield CallersInput(store, place, version, _deadline_s())
        finally:
            budget.release(held)

    async def deliver(self, job: Job, delivery: Delivery) -> Delivery:
        if job.result is None:
            raise NotDelivered("the job has no result")
        try:
            store, place = self._at(job.tenant, delivery.url)
            async with _limited(_deadline_s()), self._room_for(job.result.blob.size_bytes):
                whole = await self._read_result(job.result.blob)
                # The body last: who finds it finds the head.
                for ending, content in ((".head", whole[: job.result.head_bytes]), ("", whole[job.result.head_bytes :])):
                    await store.write((*place.segments, job.id + ending), content)
        except (InvalidRequest, StoreUnavailable, SpoolDamaged, NoSuchFile) as exc:
            raise NotDelivered(str(exc)) from exc
        return delivered(delivery)

    async def run(self) -> None:
        """Sweep every store now and then, until cancelled."""
        while True:
            for root, store in self._stores.items():
                try:
                    await store.sweep(time.time() - _UNFINISHED_S)
                except (StoreUnavailable, NoSuchFile) as exc:
                    _log.warning("%s is not swept for now: %s", root.url, exc)
                except Exception:  # such as folders in folders beyond what can be walked; they must not end the gateway
                    _log.exception("%s is not swept for now; this is a defect", root.url)
            await asyncio.sleep(_SWEEP_EVERY_S)

    async def close(self) -> None:
        for store in self._stores.values():
            await store.close()

    def _at(self, tenant: str, url: str) -> tuple[FileStore, Place]:
        place = place_of(self._prefixes, tenant, url)
        return self._stores[place.root], place

    @asynccontextmanager
    async def _room_for(self, size_bytes: int) -> AsyncIterator[None]:
        """Hold few large results in memory at a time."""
        if size_bytes <= _LARGE_BYTES:
            yield
            return
        async with self._large:
            yield


class CallersInput:
    """Input of a job in a caller's file, which is read piece by piece until a deadline: `protocols/http1.BodyPieces`."""

    def __init__(self, store: FileStore, place: Place, version: FileVersion, until_s: float) -> None:
        self._store, self._path = store, place.segments
        self._version = version
        self._until_s = until_s
        self._at = 0

    @property
    def size_bytes(self) -> int:
        return self._version.size_bytes

    async def receive(self) -> bytes | None:
        """Return the next piece, None after the last. Raises InvalidRequest: the file is not what it was. StoreUnavailable."""
        most = min(_PIECE_BYTES, self.size_bytes - self._at)
        try:
            async with _limited(self._until_s):
                piece = await self._store.read(self._path, start=self._at, most=most) if most else b""
                is_same = bool(most) or await self._store.version(self._path) == self._version
        except NoSuchFile as exc:
            raise InvalidRequest(_NO_INPUT) from exc
        if len(piece) != most or not is_same:
            raise InvalidRequest("the input file was changed while it was read; submit the job again")
        self._at += most
        return piece or None


def _deadline_s() -> float:
    return asyncio.get_running_loop().time() + _TIMEOUT_S


@asynccontextmanager
async def _limited(until_s: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout_at(until_s):
            yield
    except TimeoutError as exc:
        raise StoreUnavailable(f"the store of files has not answered for {_TIMEOUT_S:g} s") from exc
