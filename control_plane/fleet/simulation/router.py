"""Who decides: production's policies (`ours`), or others to compare them with (`perf/simulate`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from control_plane.fleet.domain.fleet import Fleet
from control_plane.fleet.simulation.workload import Request


@dataclass(frozen=True, slots=True)
class Choice:
    """Where a request goes, whether or not its model is there."""

    server: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """No server."""

    retry_after_s: float | None = None
    """The request asks again after so long, if its deadline is later; None: it is refused (503)."""


@dataclass(frozen=True, slots=True)
class Load:
    """Have another copy of a model."""

    model: str
    server: str


@dataclass(frozen=True, slots=True)
class Unload:
    """Have one copy less."""

    model: str
    server: str


class Router(Protocol):
    """Reads the fleet, whose facts are true at that moment, and changes nothing of who is where.

    As in production a server does one plan (unload victims, load a model) at a time. Which models have to go is therefore asked
    when a plan begins, not when it is wished for.
    """

    tick_s: float | None
    """How often `tick` is asked; None: never."""

    requests_may_move: bool
    """Whether those that wait for a load are sent anew when there turns out to be no room for it, and when another copy has become ready;
    else they stay where they were sent."""

    def choose(self, request: Request, fleet: Fleet, now_s: float) -> Choice | Refusal:
        """A server for this request."""

    def victims(self, model: str, server: str, fleet: Fleet, now_s: float) -> Sequence[str] | None:
        """READY models of this server that have to go before the model is loaded there.

        None: there is no room now. It is asked again when something has changed on that server.
        """

    def tick(self, fleet: Fleet, now_s: float) -> Iterable[Load | Unload]:
        """What else should change."""
