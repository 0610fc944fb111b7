"""What a node tells gateways of the models in its folders: descriptions and costs, and afterwards what changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from operator import eq
from typing import TypeVar

from control_plane.metering.domain.compute_units import ModelCost
from control_plane.models.domain.description import DescribedModel
from control_plane.node.domain.messages import MODELS_AT_ONCE, Described
from control_plane.node.ports import NodeFiles

_LOOK_EVERY_S, _MAX_PAUSE_S = 5.0, 30.0
_SHARE = 0.003
"""Part of a core that looks take at most, for as long as the longest pause allows: a thousand models take 40 ms."""

ValueT = TypeVar("ValueT")


class ToldModels:
    """Models of a node as they were read last."""

    def __init__(self, files: NodeFiles) -> None:
        self._files = files
        self._models: Mapping[str, DescribedModel] = {}
        self._costs: Mapping[str, ModelCost] = {}
        self._took_s = 0.0

    @property
    def pause_s(self) -> float:
        """How long to wait before the next look."""
        return min(max(_LOOK_EVERY_S, self._took_s / _SHARE), _MAX_PAUSE_S)

    async def look(self) -> list[Described]:
        """Read the folders, and return what has changed."""
        models, costs = await asyncio.to_thread(self._read)
        changed_models, changed_costs = _changes(self._models, models, _is_same), _changes(self._costs, costs, eq)
        self._models, self._costs = models, costs
        return list(_in_parts(changed_models, changed_costs))

    def _read(self) -> tuple[Mapping[str, DescribedModel], Mapping[str, ModelCost]]:
        began_s = time.thread_time()
        found = self._files.read()
        self._took_s = time.thread_time() - began_s
        return found

    def all(self) -> list[Described]:
        """Return everything, for a gateway that has just connected."""
        return list(_in_parts(dict(self._models), dict(self._costs)))


def _changes(
    before: Mapping[str, ValueT], now: Mapping[str, ValueT], is_same: Callable[[ValueT, ValueT], bool]
) -> dict[str, ValueT | None]:
    gone = dict.fromkeys(before.keys() - now.keys())
    return {**gone, **{name: value for name, value in now.items() if name not in before or not is_same(before[name], value)}}


def _is_same(one: DescribedModel, other: DescribedModel) -> bool:
    """Whether two descriptions are of the same files, also where those weigh the same: what was measured of others
    does not hold."""
    return one == other and one.changed_ns == other.changed_ns


def _in_parts(models: Mapping[str, DescribedModel | None], costs: Mapping[str, ModelCost | None]) -> Iterator[Described]:
    names = sorted(models.keys() | costs.keys())
    for first in range(0, len(names), MODELS_AT_ONCE):
        part = names[first : first + MODELS_AT_ONCE]
        yield Described({name: models[name] for name in part if name in models}, {name: costs[name] for name in part if name in costs})
