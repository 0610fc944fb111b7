"""What is simulated: requests in their order, what their models cost, and the fleet that they meet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

MIB = 1 << 20


class Request(NamedTuple):
    """One of a trace."""

    at_s: float
    """When it comes, from the trace's beginning."""
    model: str
    service_s: float
    """What a server works on it."""


@dataclass(frozen=True, slots=True)
class ModelCost:
    """What it takes to have a model."""

    resident_bytes: int
    load_s: float
    unload_s: float = 0.0
    """Until its memory is free, once its last request has ended."""
    latency_objective_s: float | None = None
    """As `ModelSpec` has it."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests by time, and the models that they name."""

    requests: Sequence[Request]
    models: Mapping[str, ModelCost]

    def mean_service_s(self) -> dict[str, float]:
        """By model."""
        total: dict[str, float] = defaultdict(float)
        count: dict[str, int] = defaultdict(int)
        for request in self.requests:
            total[request.model] += request.service_s
            count[request.model] += 1
        return {model: total[model] / count[model] for model in total}


@dataclass(frozen=True, slots=True)
class Joins:
    """A server comes, with nothing loaded."""

    at_s: float
    server: str


@dataclass(frozen=True, slots=True)
class Leaves:
    """A server is gone from one moment to the next; what it was at is sent elsewhere and begins anew."""

    at_s: float
    server: str


@dataclass(frozen=True, slots=True)
class FleetShape:
    """Servers that are all alike."""

    servers: int
    budget_bytes: int
    parallel: int = 1
    serves_while_loading: bool = True
    """False: it begins no request during a load."""
    deadline_s: float = 30.0
    """A request that nobody has begun to work on after so long is refused."""
    changes: Sequence[Joins | Leaves] = ()

    def names(self) -> list[str]:
        """Of the servers that are there at first."""
        return [server_name(number) for number in range(self.servers)]


def server_name(number: int) -> str:
    return f"server-{number}"
