"""What a node tells gateways of the models in its folders: descriptions and costs, and afterwards what changes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import TypeVar

from control_plane.metering.domain.compute_units import ModelCost
from control_plane.models.domain.description import DescribedModel
from control_plane.node.domain.messages import MODELS_AT_ONCE, Described
from control_plane.node.ports import NodeFiles

ValueT = TypeVar("ValueT")


class ToldModels:
    """Models of a node as they were read last."""

    def __init__(self, files: NodeFiles) -> None:
        self._files = files
        self._models: Mapping[str, DescribedModel] = {}
        self._costs: Mapping[str, ModelCost] = {}

    async def look(self) -> list[Described]:
        """Read the folders, and return what has changed."""
        models, costs = await asyncio.to_thread(self._files.read)
        changed = list(_in_parts(_changes(self._models, models), _changes(self._costs, costs)))
        self._models, self._costs = models, costs
        return changed

    def all(self) -> list[Described]:
        """Return everything, for a gateway that has just connected."""
        return list(_in_parts(dict(self._models), dict(self._costs)))


def _changes(before: Mapping[str, ValueT], now: Mapping[str, ValueT]) -> dict[str, ValueT | None]:
    gone = dict.fromkeys(before.keys() - now.keys())
    return {**gone, **{name: value for name, value in now.items() if before.get(name) != value}}


def _in_parts(models: Mapping[str, DescribedModel | None], costs: Mapping[str, ModelCost | None]) -> Iterator[Described]:
    names = sorted(models.keys() | costs.keys())
    for first in range(0, len(names), MODELS_AT_ONCE):
        part = names[first : first + MODELS_AT_ONCE]
        yield Described({name: models[name] for name in part if name in models}, {name: costs[name] for name in part if name in costs})
