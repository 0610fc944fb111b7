from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from control_plane.core.errors import ModelLoadFailed
from control_plane.core.fingerprint import Fingerprint, ModelContents, digest_of
from control_plane.core.model import ModelOverride


@dataclass
class FakeReading:
    """`models/ports.ModelReading` that returns the contents given by model in `files`; other models cannot be
    read."""

    files: dict[str, str] = field(default_factory=dict)
    steps: dict[str, list[str]] = field(default_factory=dict)
    parameters: dict[str, frozenset[str]] = field(default_factory=dict)
    callers: set[str] = field(default_factory=set)
    made_to_look_changed: list[str] = field(default_factory=list)

    def ensemble_closure(self, name: str, override: ModelOverride | None) -> list[str]:
        return list(dict.fromkeys([name, *(each for step in self.steps.get(name, []) for each in self.ensemble_closure(step, None))]))

    def read(self, name: str, override: ModelOverride | None) -> ModelContents:
        parameters, steps = self.parameters.get(name, frozenset()), frozenset(self.steps.get(name, []))
        if override is not None and override.files:
            return ModelContents(digest_of([repr(override.files).encode()]), parameters, steps, comes_with_load=True)
        if name not in self.files:
            raise ModelLoadFailed(f"{name} cannot be read")
        return ModelContents(digest_of([self.files[name].encode()]), parameters, steps, calls_others=name in self.callers)

    def mark_changed(self, name: str) -> None:
        self.made_to_look_changed.append(name)


@dataclass
class FakeBoard:
    """`models/ports.FingerprintBoard` that records every change, in order, in `published`: for each model
    whether its fingerprint is known then."""

    known: dict[str, Fingerprint] = field(default_factory=dict)
    published: list[dict[str, bool]] = field(default_factory=list)

    async def make_unknown(self, models: Iterable[str]) -> None:
        """Do nothing: no other process has fingerprints."""

    async def forget(self, models: Iterable[str]) -> None:
        """Do nothing: no other process has fingerprints."""

    async def publish(self, changes: Mapping[str, Fingerprint | None]) -> None:
        self.published.append({name: fingerprint is not None for name, fingerprint in changes.items()})
        for name, fingerprint in changes.items():
            if fingerprint is None:
                self.known.pop(name, None)
            else:
                self.known[name] = fingerprint
