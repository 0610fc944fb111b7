"""Memo of a server's parsed index, reused while the server reports the same.

Thousands of models are read twice a second, and few of them change.
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
