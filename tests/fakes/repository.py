from __future__ import annotations

from dataclasses import dataclass, field

from control_plane.domain.errors import ControlPlaneError, ModelNotFound


@dataclass
class FakeRepository:
    """`ports.ModelRepository`: models by name; `failures` are raised when that model is placed."""

    models: list[str] = field(default_factory=list)
    failures: dict[str, ControlPlaneError] = field(default_factory=dict)
    placed: list[str] = field(default_factory=list)
    """Every placing, in order; `*` for all."""

    def names(self) -> list[str]:
        return sorted(self.models)

    def place_all(self) -> None:
        self.placed.append("*")

    def place(self, name: str) -> None:
        if name in self.failures:
            raise self.failures[name]
        if name not in self.models:
            raise ModelNotFound(f"no model {name!r}")
        self.placed.append(name)
