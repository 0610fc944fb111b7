"""Merges what is wanted of a model: its folder, this process's command line, and what administrators have
said since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from control_plane.fleet.domain.memory import DesiredState
from control_plane.models.domain.description import DescribedModel, ModelSpec

_NOTHING = DesiredState()


class ModelSpecs:
    """Desired state of the fleet's models. The source that wants the most replicas wins; a model that an
    administrator suspended has none."""

    def __init__(self) -> None:
        self.wishes: Mapping[str, DesiredState] = {}
        self.pins: dict[str, int] = {}
        """Model -> replicas that this process was started to keep."""

    def merge(self, model: DescribedModel) -> ModelSpec:
        """Return the merged specification of a model."""
        name, most = model.spec.name, model.spec.max_replicas
        wish = self.wishes.get(name, _NOTHING)
        least = max(model.spec.min_replicas, self.pins.get(name, 0), wish.min_replicas or 0)
        least = 0 if wish.is_suspended else least
        # Models with sequences get one replica unless their owner says otherwise, by either bound: so every
        # process sends a sequence to the same place.
        most = max(1, model.spec.min_replicas) if model.has_sequences and most is None else most
        # Most are as their folders say: thousands are merged every few seconds, and a copy takes longest.
        is_same = (least, most) == (model.spec.min_replicas, model.spec.max_replicas)
        return model.spec if is_same else replace(model.spec, min_replicas=least, max_replicas=most)
