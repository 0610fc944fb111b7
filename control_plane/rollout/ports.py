"""Port of rollouts: where gateways add up what they have seen.

Called by `rollout/shared_evidence`; `rollout/adapters` implements it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from control_plane.rollout.domain.findings import Sums


class EvidenceBoard(Protocol):
    """Shared store of the evidence of rollouts: each process's sums, and which units count already. Each method raises
    StoreUnavailable; then its change may have been made, or not."""

    async def claim(self, rollout: str, units: Collection[int]) -> tuple[frozenset[int], int]:
        """Claim units (digests of 64 bits) for the caller; return those that nobody had claimed, and how many of the rollout
        are claimed now."""

    async def exchange(self, rollout: str, process: str, own: Sums | None) -> Mapping[str, Sums]:
        """Write a process's own sums, if it has any yet, and return those of all processes, by process. Only so many
        processes' are kept; of one too many they are not written."""

    async def close(self) -> None: ...
