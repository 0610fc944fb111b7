"""What is compared, by name."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from control_plane.fleet.simulation.production_router import ProductionRouter
from control_plane.fleet.simulation.router import Router
from perf.simulate.baselines import BoundedHash, ConsistentHash, LeastOutstanding, RandomServer, RoundRobin
from perf.simulate.modelmesh import ModelMesh

OURS, ROUND_ROBIN = "Tidegate", "round robin"

_SCALE = 0.050 / 3
"""ModelMesh's constants are for loads of 3 s at least, the ones here take 50 ms."""

SLOW = "ModelMesh", "ModelMesh, times scaled"
"""They look at all that is loaded anywhere, for each miss."""

POLICIES: dict[str, Callable[[int], Router]] = {
    ROUND_ROBIN: lambda seed: RoundRobin(),
    "random": lambda seed: RandomServer(Random(seed)),
    "least outstanding": lambda seed: LeastOutstanding(Random(seed)),
    "hash": lambda seed: ConsistentHash(),
    "bounded hash": lambda seed: BoundedHash(),
    "ModelMesh": lambda seed: ModelMesh(Random(seed)),
    "ModelMesh, times scaled": lambda seed: ModelMesh(Random(seed), _SCALE),
    OURS: lambda seed: ProductionRouter(Random(seed)),
}
"""Made with a seed."""
