"""Port of the admin API: records of requests with idempotency keys, which gateways share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from control_plane.core.errors import LimitExceeded, Overloaded

KEEP_S = 600.0
"""Time for which a record is kept: longer than any client tries the same request again."""
MOST, MOST_OF_CALLER = 1000, 250
"""Records at a time, of all callers and of one, which else could leave none to the others. Of more the new one is refused:
forgetting a younger one would let its request be done twice."""
_RETRY_AFTER_S = 60.0


def require_room(of_caller: int, in_all: int) -> None:
    """Refuse one more record beside those that there are. Raises LimitExceeded: its caller has as many as it may; Overloaded."""
    rule = f"idempotency keys were used within {KEEP_S / 60:g} minutes; try again later"
    if of_caller >= MOST_OF_CALLER:
        raise LimitExceeded(f"{MOST_OF_CALLER} {rule}", retry_after_s=_RETRY_AFTER_S)
    if in_all >= MOST:
        raise Overloaded(f"{MOST:,} {rule}")


def caller_of(name: str) -> str:
    """Return the part of a record's name that is its caller's, with the dot."""
    return name[: name.index(".") + 1]


@dataclass(frozen=True, slots=True)
class Record:
    """Record of the first request with an idempotency key."""

    digest: str
    """SHA-256 of the request, in hexadecimal digits."""
    answer: str = ""
    """The call's answer, sealed (`admin/idempotency/sealed_answer`); empty while there is none."""


class IdempotencyRecords(Protocol):
    """Store of such records by name (`CALLER.REQUEST`), each for `KEEP_S`. Every method raises StoreUnavailable if it cannot be reached."""

    async def begin(self, name: str, digest: str) -> Record | None:
        """Make the record of a first request, in one step for all gateways, and return None; or return the earlier record.

        Raises LimitExceeded, Overloaded: there are as many as may be (`require_room`).
        """

    async def answer(self, name: str, digest: str, sealed: str) -> None:
        """Add the answer to a record; without that record, or where it is of another request, nothing is done."""

    async def forget(self, name: str, digest: str) -> None:
        """Delete the record of a request of which nothing was done."""

    async def close(self) -> None: ...
