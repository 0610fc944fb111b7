from __future__ import annotations

from dataclasses import dataclass, field
from threading import Event

from control_plane.core.errors import ControlPlaneError, ModelLoadFailed, ModelNotFound


@dataclass
class FakeRepository:
    """In-memory `models/ports.ModelRepository`; `failures` are raised when that model is placed, `unloadable`
    when it is checked."""

    models: list[str] = field(default_factory=list)
    failures: dict[str, ControlPlaneError] = field(default_factory=dict)
    steps: dict[str, list[str]] = field(default_factory=dict)
    """Steps of ensembles, by ensemble."""
    unloadable: dict[str, str] = field(default_factory=dict)
    placed: list[str] = field(default_factory=list)
    """Every call that places a model, in order; `*` for all models."""

    cannot_place_all: ControlPlaneError | None = None
    places_all_when: Event | None = None
    """Event that placing all models waits for, as it does for a slow disk."""
    places_when: Event | None = None
    """Event that placing one model waits for."""
    asked: list[str] = field(default_factory=list)
    """Models that are to be placed, in order."""

    def names(self) -> list[str]:
        return sorted(self.models)

    def place_all(self) -> None:
        assert self.places_all_when is None or self.places_all_when.wait(30)
        if self.cannot_place_all is not None:
            raise self.cannot_place_all
        self.placed.append("*")

    def place(self, name: str) -> list[str]:
        self.asked.append(name)
        assert self.places_when is None or self.places_when.wait(30)
        if name in self.failures:
            raise self.failures[name]
        if name not in self.models:
            raise ModelNotFound(f"no model {name!r}")
        self.placed.append(name)
        return [name, *self.steps.get(name, [])]

    def require_loadable(self, name: str) -> None:
        if name in self.unloadable:
            raise ModelLoadFailed(self.unloadable[name])

    def ensemble_closure(self, name: str) -> list[str]:
        if name not in self.models:
            raise ModelNotFound(f"no model {name!r}")
        return [*self.steps.get(name, []), name]
