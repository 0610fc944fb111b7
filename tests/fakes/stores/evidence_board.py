from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from control_plane.core.errors import StoreUnavailable
from control_plane.rollout.domain.findings import Sums


@dataclass
class FakeEvidenceBoard:
    """In-memory `rollout/ports.EvidenceBoard`, which several processes may share; while it `is_away` every call
    raises StoreUnavailable."""

    units: dict[str, set[int]] = field(default_factory=dict)
    sums: dict[str, dict[str, Sums]] = field(default_factory=dict)
    max_processes: int = 200
    is_away: bool = False

    async def claim(self, rollout: str, units: Collection[int]) -> tuple[frozenset[int], int]:
        self._reach()
        claimed = self.units.setdefault(rollout, set())
        fresh = frozenset(units) - claimed
        claimed |= fresh
        return fresh, len(claimed)

    async def exchange(self, rollout: str, process: str, own: Sums | None) -> Mapping[str, Sums]:
        self._reach()
        held = self.sums.setdefault(rollout, {})
        if own is not None and (process in held or len(held) < self.max_processes):
            held[process] = own
        return dict(held)

    async def close(self) -> None: ...

    def _reach(self) -> None:
        if self.is_away:
            raise StoreUnavailable("the store is away")
