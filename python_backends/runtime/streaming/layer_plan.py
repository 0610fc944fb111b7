"""Decides which layers of a model stay on the device, so that all weights there fit into a budget. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from python_backends.runtime.errors import ConfigError
from python_backends.runtime.streaming.budget import PARAMETER

MIB = 1 << 20
BUFFERS = 2
"""One for the layer that computes, one for the next, which is copied meanwhile."""


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """Layers by their number; `streamed` ones take turns in buffers of `buffer_bytes`, all others stay on the device."""

    streamed: Sequence[int]
    buffer_bytes: int
    held_bytes: int
    """Bytes of weights on the device, always: what is in no layer, the layers that stay, and the buffers."""


def plan_layers(layer_bytes: Sequence[int], other_bytes: int, budget_bytes: int) -> LayerPlan:
    """Keep as many layers on the device as the budget allows; `other_bytes` are of what is in no layer and stays, too.

    Raises:
        ConfigError: The budget is less than what is in no layer and the buffers take; the text says how much that is.
    """
    whole = other_bytes + sum(layer_bytes)
    if whole <= budget_bytes:
        return LayerPlan((), 0, whole)
    buffer_bytes = max(layer_bytes)
    least = other_bytes + BUFFERS * buffer_bytes
    if least > budget_bytes:
        raise ConfigError(
            f"weights cannot be streamed in {budget_bytes // MIB} MiB: parameter '{PARAMETER}' must be at least "
            f"{math.ceil(min(least, whole) / MIB)}, the embedding, the head and twice the largest layer, "
            "so that the next layer is copied while one computes"
        )
    for count in range(1, len(layer_bytes) + 1):
        streamed = _spread(count, len(layer_bytes))
        held = least + sum(layer_bytes) - sum(layer_bytes[number] for number in streamed)
        if held <= budget_bytes:
            break
    return LayerPlan(streamed, buffer_bytes, held)


def _spread(count: int, layers: int) -> Sequence[int]:
    """Choose layers that are evenly apart: those between them compute while the next one is copied."""
    return [number * layers // count for number in range(count)]
