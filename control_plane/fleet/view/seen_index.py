"""What the index of a server says, worked out once for as long as the server says the same: thousands of models are looked
at twice a second there, and few of them change.
"""

from __future__ import annotations

from collections.abc import Iterable

from control_plane.core.model import ModelVersion
from control_plane.fleet.domain.placement.load_plan import states_of


class SeenIndex:
    """Repository index of one server as it was last seen."""

    __slots__ = ("index", "names", "states")

    def __init__(self, index: Iterable[ModelVersion]) -> None:
        self.index = index
        """The index itself: the same object says the same."""
        lines = list(index)
        self.names = {line.name for line in lines}
        """All models that the server could load."""
        self.states = states_of(lines)
