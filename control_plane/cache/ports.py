"""The cache that several gateways share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from control_plane.telemetry.shared_cache_counts import SharedCacheCounts


class SharedCache(Protocol):
    """Level two of the response cache, which gateways share. It is never needed: what fails, is late or is damaged is not there."""

    @property
    def counts(self) -> SharedCacheCounts:
        """What became of lookups and writes so far; it goes on counting."""

    @property
    def is_open(self) -> bool:
        """Whether it is not asked now, since it cannot be reached or failed too often."""

    @property
    def answer_s(self) -> float:
        """Seconds that an answer usually takes, as this process experiences them; 0.0 while that is not known."""

    async def get(self, keys: Sequence[bytes], *, computing_s: float) -> list[bytes | None]:
        """Their values, in that order, as far as they come while waiting costs less than computing all of them, which takes `computing_s`.

        Raises nothing; cancelling is heeded at once.
        """

    def put(self, key: bytes, value: bytes, *, ttl_s: float) -> None:
        """Keep it, soon, without waiting; whole seconds, one at least. What there is no room for now is dropped and counted."""

    async def run(self) -> None:
        """Write what was put until cancelled, through outages."""

    async def close(self) -> None: ...
