"""Input of a simulation: requests in order of time, what their models cost, and the shape of the fleet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

MIB = 1 << 20


class Request(NamedTuple):
    """One request of a trace."""

    at_s: float
    """Arrival time, in seconds from the trace's beginning."""
    model: str
    service_s: float
    """Time that a server works on the request."""
    again_s: float | None = None
    """Time that a second server works on it, if it is sent to two: what makes one slow need not do so to the other.
    None: the same."""
    noticed_late_s: float = 0.0
    """Time after its end at which its gateway notices the answer: what gateway and network add, no server is busy with it and no hedge
    is sent meanwhile."""


@dataclass(frozen=True, slots=True)
class ModelCost:
    """Memory and times that a model costs."""

    resident_bytes: int
    load_s: float
    unload_s: float = 0.0
    """Time until the memory is free, once the last request has ended."""
    latency_objective_s: float | None = None
    """See `ModelSpec.latency_objective_s`."""
    is_repeatable: bool = False
    """See `ModelSpec.is_repeatable`."""
    min_replicas: int = 0
    """See `ModelSpec.min_replicas`."""
    heeds_after_s: float | None = None
    """Time after which the model heeds that a request has been cancelled; None: it computes to the end."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in order of time, and the models that they name."""

    requests: Sequence[Request]
    models: Mapping[str, ModelCost]

    def mean_service_s(self) -> dict[str, float]:
        """Return the mean service time of each model."""
        total: dict[str, float] = defaultdict(float)
        count: dict[str, int] = defaultdict(int)
        for request in self.requests:
            total[request.model] += request.service_s
            count[request.model] += 1
        return {model: total[model] / count[model] for model in total}


@dataclass(frozen=True, slots=True)
class Joins:
    """A server joins, with nothing loaded."""

    at_s: float
    server: str


@dataclass(frozen=True, slots=True)
class Leaves:
    """A server fails at this moment; its requests are sent elsewhere and begin anew."""

    at_s: float
    server: str


@dataclass(frozen=True, slots=True)
class Pauses:
    """A server stands still from this moment for so long: nothing there begins or ends, and nobody is told.

    Production notices what lasts longer than half a second (`SILENT` of a server); the simulation does not.
    """

    at_s: float
    server: str
    for_s: float


@dataclass(frozen=True, slots=True)
class FleetShape:
    """The servers of a simulated fleet, which are all alike, and how their number changes."""

    servers: int
    budget_bytes: int
    parallel: int = 1
    """Requests that a server works on at a time, and instances of each replica."""
    routed_as: int | None = None
    """What routing takes `parallel` for; None: what it is. In production, which is not told, it is 1."""
    serves_while_loading: bool = True
    """False: the server begins no request during a load."""
    deadline_s: float = 30.0
    """A request that no server has begun within this time is refused."""
    changes: Sequence[Joins | Leaves | Pauses] = ()
    counted_from_s: float = 0.0
    """What happens before this time is in no result: loads come first, and hedging learns."""

    def names(self) -> list[str]:
        """Names of the servers that the fleet begins with."""
        return [server_name(number) for number in range(self.servers)]


def server_name(number: int) -> str:
    return f"server-{number}"
