"""Interface of a simulation's router: production's policies (`production_router`), or others to compare with them (`perf/simulate`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from control_plane.fleet.domain.fleet import Fleet
from control_plane.fleet.simulation.workload import Request


@dataclass(frozen=True, slots=True)
class SendRequest:
    """Decision to send a request to a server, whether or not its model is there."""

    server: str


@dataclass(frozen=True, slots=True)
class RefuseRequest:
    """Decision that no server can take the request now."""

    retry_after_s: float | None = None
    """The request asks again after this time if its deadline allows; None if it is refused for good (503)."""


@dataclass(frozen=True, slots=True)
class LoadReplica:
    """Decision to load one more replica of a model."""

    model: str
    server: str
    is_prefetch: bool = False
    """Whether the model is loaded ahead of demand; only what is counted depends on that."""


@dataclass(frozen=True, slots=True)
class UnloadReplica:
    """Decision to unload a replica."""

    model: str
    server: str


class Router(Protocol):
    """Decider of a simulation. It reads the fleet, whose facts are true at that moment, and moves nothing
    itself.

    As in production, a server carries out one plan (unload victims, load a model) at a time. So victims are
    chosen when a plan begins, not when the load is asked for.
    """

    tick_s: float | None
    """Time between two calls of `tick`; None for no calls."""

    requests_may_move: bool
    """Whether requests that wait for a load are routed anew when there is no room for it, or when another
    replica has become ready; otherwise they stay where they were sent."""

    def choose(self, request: Request, fleet: Fleet, now_s: float) -> SendRequest | RefuseRequest:
        """Choose a server for this request."""

    def victims(self, model: str, server: str, fleet: Fleet, now_s: float) -> Sequence[str] | None:
        """Return the READY models of this server that must go before the model is loaded there.

        None: there is no room now. It is asked again when something has changed on that server.
        """

    def tick(self, fleet: Fleet, now_s: float) -> Iterable[LoadReplica | UnloadReplica]:
        """Yield further loads and unloads."""
