"""Ports of rollouts: where gateways add up what they have seen, and the copies of models that a fleet has.

Called by `rollout/shared_evidence` and `rollout/rollouts`; `rollout/adapters` and `fleet/kept_replicas` implement them.
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


class Copies(Protocol):
    """The copies of models that a fleet has loaded. Where there is one server, there is none of this: it has each model
    once, and a load that does not fit fails before a rollout can begin."""

    def keep(self, wanted: Mapping[str, int]) -> None:
        """Keep at least so many copies of these models, and load what is missing, in place of what was kept before."""

    def ready(self, model: str) -> int:
        """Return how many copies of a model can serve now."""

    def why_no_room(self, model: str, count: int, stay: Mapping[str, int]) -> str:
        """Return why there cannot be so many copies of a model while those of others stay; empty where there can."""
