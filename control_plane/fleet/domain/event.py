"""What has happened to a fleet's models and servers, for people."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FleetEventKind(StrEnum):
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


OF_SERVERS = frozenset((FleetEventKind.DOWN, FleetEventKind.UP, FleetEventKind.EJECTED, FleetEventKind.READMITTED))
"""The others are of copies of models."""


@dataclass(frozen=True, slots=True)
class FleetEvent:
    at_s: float
    """In seconds since 1970."""
    kind: FleetEventKind
    model: str
    """Empty of what has happened to a server."""
    server: str
    reason: str
    """Why, in a sentence without its full stop; empty where the kind says it."""
    seconds: float = 0.0
    """That it took; 0 where it takes none."""
