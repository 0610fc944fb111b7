"""What is wanted of a fleet's models: their folders' word, this process's command line, and what administrators have said since."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from control_plane.fleet.domain.memory import Wish
from control_plane.models.domain.description import DescribedModel, ModelSpec

_NOTHING = Wish()


class ModelSpecs:
    """Whoever wants the most copies gets them; but what an administrator has unloaded is kept nowhere."""

    def __init__(self) -> None:
        self.wishes: Mapping[str, Wish] = {}
        self.pins: dict[str, int] = {}
        """By model, the copies that this process was started to keep."""

    def is_withdrawn(self, model: str) -> bool:
        """Whether an administrator has unloaded it: it is loaded for nobody."""
        return self.wishes.get(model, _NOTHING).is_withdrawn

    def of(self, model: DescribedModel) -> ModelSpec:
        """One copy of what has sequences, unless its owner says otherwise: every process then sends them to the same."""
        name, most = model.spec.name, model.spec.max_copies
        wish = self.wishes.get(name, _NOTHING)
        least = max(model.spec.min_copies, self.pins.get(name, 0), wish.min_copies or 0)
        return replace(
            model.spec,
            min_copies=0 if wish.is_withdrawn else least,
            max_copies=1 if model.has_sequences and most is None else most,
        )
