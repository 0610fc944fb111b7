"""Rule for where the bytes of a job are: few in its record, many in the spool; used by all that writes bodies and results."""

from __future__ import annotations

from collections.abc import Sequence

from control_plane.jobs.domain.job import Blob, carried
from control_plane.jobs.ports import JobStore, Spool


async def keep(pieces: Sequence[bytes | bytearray], *, job_id: str, name: str, store: JobStore, spool: Spool, is_new: bool = False) -> Blob:
    """Keep few bytes for the record, and write more to the spool, as `Spool.write` does. Raises StoreUnavailable."""
    if sum(map(len, pieces)) <= store.carries_bytes:
        return carried(job_id, name, b"".join(pieces))
    return await spool.write(job_id, name, pieces, is_new=is_new)
