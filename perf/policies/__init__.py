"""What `perf.eviction` compares: each decides which keys to keep in a bounded number of bytes.

The published ones are as in their papers, with unit sizes where the paper has them: a key's size is then its share of the room.
Keys remembered after they were evicted cost nothing here, as is the custom.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from perf.policies.arc import Arc
from perf.policies.lru import GreedyDualSizeFrequency, Lru
from perf.policies.ours import Ours
from perf.policies.s3_fifo import S3Fifo, Sieve
from perf.policies.theine import Theine
from perf.policies.w_tinylfu import WTinyLfu


class Policy(Protocol):
    """Eviction policy of a cache that is bounded in bytes."""

    def use(self, key: int, size: int, cost: float) -> bool:
        """Whether it was there. If not, it is computed at that cost, and offered."""
        ...


OURS = "Tidegate"
POLICIES: dict[str, Callable[[int, int], Policy]] = {
    "LRU": Lru,
    "SIEVE": Sieve,
    "S3-FIFO": S3Fifo,
    "ARC": Arc,
    "W-TinyLFU": WTinyLfu,
    "GDSF": GreedyDualSizeFrequency,
    "theine": Theine,
    OURS: Ours,
}
"""Policies by name: each is made with the room in bytes and in entries of the usual size."""
