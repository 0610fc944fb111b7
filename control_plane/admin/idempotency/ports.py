"""Port of the admin API: records of requests with idempotency keys, which gateways share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

KEEP_S = 600.0
"""Time for which a record is kept: longer than any client tries the same request again."""
MOST = 1000
"""Records at a time. Of more the new one is refused: forgetting a younger one would let its request be done twice."""


def too_many() -> str:
    """Return why one more is refused."""
    return f"{MOST:,} idempotency keys were used within {KEEP_S / 60:g} minutes; try again later"


@dataclass(frozen=True, slots=True)
class Record:
    """Record of the first request with an idempotency key."""

    digest: str
    """SHA-256 of the request, in hexadecimal digits."""
    answer: str = ""
    """Its answer, sealed (`admin/idempotency/sealed_answer`); empty while there is none."""


class IdempotencyRecords(Protocol):
    """Store of such records by name, each for `KEEP_S`. Every method raises StoreUnavailable if it cannot be reached."""

    async def begin(self, name: str, digest: str) -> Record | None:
        """Make the record of a first request, in one step for all gateways, and return None; or return the earlier record.

        Raises Overloaded: there are `MOST` records.
        """

    async def answer(self, name: str, digest: str, sealed: str) -> None:
        """Add the answer to a record; without that record, or where it is of another request, nothing is done."""

    async def forget(self, name: str, digest: str) -> None:
        """Delete the record of a request of which nothing was done."""

    async def close(self) -> None: ...
