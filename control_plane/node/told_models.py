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
_GLANCE_EVERY_S = 1.0
"""Time between two glances at what has come or gone, which cost microseconds."""
_SHARE = 0.002
"""Part of a core that looks take at most, for as long as the longest pause allows: a thousand models take 40 ms."""

ValueT = TypeVar("ValueT")


class ToldModels:
    """Models of a node as they were read last."""

    def __init__(self, files: NodeFiles) -> None:
        self._files = files
        self._models: Mapping[str, DescribedModel] = {}
        self._costs: Mapping[str, ModelCost] = {}
        self._state: object = None
        """State of the files when they were read last."""
        self._took_s = 0.0
        self._has_changed = False
        """Whether the last look has found anything new: what is being copied there is not whole yet."""
        self._turn = asyncio.Lock()

    @property
    def pause_s(self) -> float:
        """How long to wait before the next look, if no model comes or goes."""
        return _LOOK_EVERY_S if self._has_changed else min(max(_LOOK_EVERY_S, self._took_s / _SHARE), _MAX_PAUSE_S)

    async def wait_until_due(self) -> None:
        """Wait until it is time for the next look, or a model has come or gone."""
        now_s = asyncio.get_running_loop().time
        until_s = now_s() + self.pause_s
        while (left_s := until_s - now_s()) > 0:
            await asyncio.sleep(min(_GLANCE_EVERY_S, left_s))
            if await asyncio.to_thread(self._files.state) != self._state:
                return

    async def look(self) -> list[Described]:
        """Read the folders, and return what has changed."""
        async with self._turn:  # what an earlier read has found would take back what a later one has
            models, costs = await asyncio.to_thread(self._read)
            changed_models, changed_costs = _changes(self._models, models, _is_same), _changes(self._costs, costs, eq)
            self._models, self._costs = models, costs
            self._has_changed = bool(changed_models or changed_costs)
            return list(_in_parts(changed_models, changed_costs))

    def is_cold(self, name: str) -> bool:
        """Whether the model's files were not here when the folders were read last."""
        return (known := self._models.get(name)) is not None and known.fetch_s is not None

    def _read(self) -> tuple[Mapping[str, DescribedModel], Mapping[str, ModelCost]]:
        self._state = self._files.state()
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
