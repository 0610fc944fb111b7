"""Worlds in which two versions are compared: who asks when, who is assigned to which, and what becomes of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class World:
    """World in which requests come tick by tick; rates are parts of all requests that are bad."""

    name: str
    told: str
    rates: tuple[float, ...]
    """Rate of bad outcomes for each gate, with the present version."""
    canary_rates: tuple[float, ...] = ()
    """The same with the next version; empty: they are alike."""
    weights: tuple[float, ...] = (0.1,)
    """Parts of the requests, step by step, each for the same time."""
    per_tick: int = 100
    swing: float = 0.0
    """By how much traffic and rates rise and fall in a day, as a part of their mean."""
    day_ticks: int = 50
    units: int = 0
    """Callers who stick to a version, of very unequal size; 0: each request is on its own."""
    always_bad: int = 0
    """How many of the largest of those callers always fail."""


@dataclass(slots=True)
class Tick:
    """Requests of a tick: whether each is the canary's, its unit, and by gate whether it was bad."""

    is_canary: Bools
    units: npt.NDArray[np.int64]
    bad: list[Bools] = field(default_factory=list)
    is_distinct: bool = False
    """Whether no unit has come before, or comes twice."""


def ticks(world: World, count: int, drawn: np.random.Generator) -> Iterator[Tick]:
    """Yield so many ticks of a world."""
    # Which of two versions a caller sticks to is decided by the place at which its hash stands, as in production.
    places = drawn.random(world.units)
    sizes = 1.0 / np.arange(1, world.units + 1) if world.units else np.ones(1)
    cumulated = np.cumsum(sizes / sizes.sum())
    begun = 0
    for number in range(count):
        weight = world.weights[number * len(world.weights) // count]
        level = 1.0 + world.swing * np.sin(2 * np.pi * number / world.day_ticks)
        requests = drawn.poisson(world.per_tick * level)
        if world.units:
            units = np.searchsorted(cumulated, drawn.random(requests)).clip(0, world.units - 1)
            is_canary = places[units] < weight
        else:
            units = np.arange(begun, begun + requests)
            is_canary = drawn.random(requests) < weight
        begun += requests
        tick = Tick(is_canary, units, is_distinct=not world.units)
        for rate, canary_rate in zip(world.rates, world.canary_rates or world.rates, strict=True):
            of_each = np.where(is_canary, canary_rate, rate) * level
            tick.bad.append((drawn.random(requests) < of_each) | (units < world.always_bad if world.units else np.zeros(requests, bool)))
        yield tick
