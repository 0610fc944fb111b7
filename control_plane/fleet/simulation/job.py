"""Job of the simulation: one request at one server; a hedged request has two."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from control_plane.fleet.simulation.workload import Request


@dataclass(slots=True, eq=False)
class Job:
    """A request at a server."""

    request: Request
    expected_s: float
    """Service time as known beforehand: the model's mean."""
    deadline_s: float
    is_hedge: bool = False
    other: Job | None = None
    """The same request at its other server, if it has been sent to two."""
    server: str = ""
    """Name of the server that the request was sent to."""
    waits_since_s: float = 0.0
    """When the request came to the server where it waits for its model's load."""
    sent_s: float = inf
    """When the request was sent to Triton: it had come to the server, and the model was ready."""
    began_s: float = inf
    ends_s: float = inf
    """When the server will have computed the request."""
    has_ended: bool = False
    """Whether the request was answered, or given up."""
    has_lost: bool = False
    """Whether the other server has answered."""
    is_cancelled: bool = False

    @property
    def service_s(self) -> float:
        """Time that its server works on it."""
        again_s = self.request.again_s
        return again_s if self.is_hedge and again_s is not None else self.request.service_s

    @property
    def is_needed(self) -> bool:
        """Whether the request depends on it: no other server has answered it or is about to."""
        return not self.has_lost and (self.other is None or self.other.has_ended)

    def anew(self) -> Job:
        """Return a job of the same request, to be sent elsewhere since this server has left."""
        return Job(self.request, self.expected_s, self.deadline_s)
