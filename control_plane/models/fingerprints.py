"""What this process knows of the models that are loaded; asked for by every request whose answer may be kept.

Whoever loads models changes it (`models/loaded_contents`): before a load or unload begins the model's is unknown, and it
is known again when it is certain what was loaded. In between, and for whatever others have loaded, answers are neither
kept nor taken from a cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from control_plane.core.fingerprint import Fingerprint
from control_plane.triton.ports import Upstream


class Fingerprints:
    """By model. In the only process, `models/ports.FingerprintBoard` and `triton/servers.Follower` as well."""

    def __init__(self) -> None:
        self._known: dict[str, Fingerprint] = {}
        self.generation = 0
        """Grows whenever anything that is known may have changed."""

    def of(self, model: str) -> Fingerprint | None:
        """Of what answers to that name now; None where that is not certain."""
        return self._known.get(model)

    def change(self, changes: Mapping[str, Fingerprint | None]) -> None:
        """From now on; None is unknown."""
        self.generation += 1
        for model, fingerprint in changes.items():
            if fingerprint is None:
                self._known.pop(model, None)
            else:
                self._known[model] = fingerprint

    def all(self) -> dict[str, Fingerprint]:
        """Every one that is known now."""
        return dict(self._known)

    def forget_all(self) -> None:
        """Triton has ended, or may have."""
        self.generation += 1
        self._known.clear()

    async def publish(self, changes: Mapping[str, Fingerprint | None]) -> None:
        self.change(changes)

    async def doubt(self, models: Iterable[str]) -> None:
        """They are unknown already; nobody else has them."""

    async def forget(self, models: Iterable[str]) -> None:
        """The same."""

    def up(self, upstream: Upstream, server: str = "") -> None:
        """What it has loaded is made known by whoever loaded it."""

    def down(self, reason: str, server: str = "") -> None:
        self.forget_all()

    def left(self, server: str) -> None:
        """It went down before."""
