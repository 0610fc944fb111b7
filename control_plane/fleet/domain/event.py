"""Events of a fleet's models and servers, as administrators read them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FleetEventKind(StrEnum):
    """Kind of an event in the fleet's log, about a replica or a server."""

    LOADED = "loaded"
    EVICTED = "evicted"
    UNLOADED = "unloaded"
    FAILED = "failed"
    LOST = "lost"
    DOWN = "down"
    UP = "up"
    """A server that was down answers again."""
    EJECTED = "ejected"
    READMITTED = "readmitted"
    SILENT = "silent"
    """A server that is up says nothing."""
    ANSWERING = "answering"
    """A server that was silent answers again."""


OF_SERVERS = frozenset(
    (
        FleetEventKind.DOWN,
        FleetEventKind.UP,
        FleetEventKind.EJECTED,
        FleetEventKind.READMITTED,
        FleetEventKind.SILENT,
        FleetEventKind.ANSWERING,
    )
)
"""The kinds that concern a server; all others concern a replica of a model."""


@dataclass(frozen=True, slots=True)
class FleetEvent:
    """One event: what happened, to which model and server, when and why."""

    at_s: float
    """Seconds since 1970."""
    kind: FleetEventKind
    model: str
    """Empty for events of servers."""
    server: str
    reason: str
    """A sentence without its full stop; empty where the kind says everything."""
    seconds: float = 0.0
    """How long the event took; 0 where that has no meaning."""
