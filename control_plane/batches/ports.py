"""Port of batches: the store of files and of what is written down about batches."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from control_plane.batches.domain.batch import Batch, Chunk, Ended, StoredFile
from control_plane.jobs.ports import BlobReader


class Shelf(Protocol):
    """Durable store of files and batches, shared by all processes that share the spool.

    Everything in it is written once, whole, and never changed; who writes the same again changes nothing. Each
    method raises StoreUnavailable.
    """

    async def add_file(self, file: StoredFile, pieces: AsyncIterator[bytes]) -> StoredFile:
        """Write a file as its pieces come; returned is what it is, with the size that it has. Where one cannot come,
        nothing is left of the file.
        """

    async def file(self, tenant: str, file_id: str) -> StoredFile | None: ...

    async def files(self, tenant: str) -> list[StoredFile]:
        """Return a tenant's files, the newest first."""

    async def filled(self, tenant: str) -> tuple[int, int]:
        """Return how many files a tenant has, and how many bytes of them and of open batches' inputs, without a look into
        each."""

    async def read_file(self, tenant: str, file_id: str) -> BlobReader | None: ...

    async def delete_file(self, tenant: str, file_id: str) -> bool: ...

    async def add_batch(self, batch: Batch) -> bool:
        """Write down a batch, and keep its input with it; False: the input file is gone."""

    async def batch(self, tenant: str, batch_id: str) -> Batch | None: ...

    async def batches(self, tenant: str, *, after: str, limit: int) -> list[Batch]:
        """Return a tenant's batches, the newest first, from the one after `after` on."""

    async def open_batches(self) -> list[Batch]:
        """Return everybody's batches that have not ended."""

    async def open_count(self, tenant: str) -> int:
        """Return how many of a tenant's batches have not ended."""

    async def read_chunk(self, batch: Batch, chunk: Chunk) -> bytes: ...

    async def cancel(self, batch: Batch, *, now_s: float) -> None: ...

    async def cancelled_s(self, batch: Batch) -> float | None:
        """Return when it was first cancelled."""

    async def end(self, batch: Batch, ended: Ended) -> None: ...

    async def ended(self, batch: Batch) -> Ended | None: ...

    async def remove_older(self, before_s: float, *, unfinished_before_s: float) -> None:
        """Remove files, and batches that have ended, that were made before this time, and what a process has left
        unfinished that was killed before the other.
        """

    async def close(self) -> None: ...
