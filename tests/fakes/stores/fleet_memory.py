from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from control_plane.core.errors import StoreUnavailable
from control_plane.fleet.domain.memory import DesiredState, Measured


@dataclass
class FakeFleetMemory:
    """In-memory `fleet/ports.FleetMemory`, which several processes may share; while it `is_away` every call
    raises StoreUnavailable."""

    models: dict[str, Measured] = field(default_factory=dict)
    wanted: dict[str, DesiredState] = field(default_factory=dict)
    is_away: bool = False
    writes: int = 0
    has_lost_wishes: bool = False

    async def measured(self) -> Mapping[str, Measured]:
        self._reach()
        return dict(self.models)

    async def measure(self, changes: Mapping[str, Measured | None]) -> None:
        self._reach()
        self.writes += 1
        for name, known in changes.items():
            self.models.pop(name, None)
            if known is not None:
                self.models[name] = known

    async def wishes(self) -> Mapping[str, DesiredState] | None:
        self._reach()
        return None if self.has_lost_wishes else dict(self.wanted)

    async def wish(self, changes: Mapping[str, DesiredState | None]) -> None:
        self._reach()
        self.has_lost_wishes = False
        self.wanted = {name: wish for name, wish in {**self.wanted, **changes}.items() if wish is not None}

    def lose_wishes(self) -> None:
        """Lose all desired states, like a Redis that has been emptied."""
        self.wanted.clear()
        self.has_lost_wishes = True

    async def close(self) -> None: ...

    def _reach(self) -> None:
        if self.is_away:
            raise StoreUnavailable("the store is away")
