"""What is told of all servers together, where there are several: the port that a fleet's catalogue fills."""

from __future__ import annotations

from typing import Protocol

from control_plane.core.model import ModelVersion
from control_plane.triton.ports import Upstream


class Catalogue(Protocol):
    """The models of several Tritons as if they were one's: `fleet/view/catalogue`."""

    async def index(self, *, only_ready: bool = False) -> list[ModelVersion]:
        """Every model that there is, by name and version, each in the best state that it has anywhere. Raises UpstreamUnavailable."""

    def knows(self, model: str) -> bool:
        """Whether there is such a model, loaded or not."""

    def is_ready(self, model: str) -> bool:
        """Whether a request for it would be served, if need be once it is loaded."""

    def servers_of(self, model: str) -> list[Upstream]:
        """Those that have it ready; without a name all that are up, of which there must be one. Raises UpstreamUnavailable."""
