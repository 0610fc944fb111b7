"""What has happened to the models of a fleet, for people: newest last, a bounded number."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FleetEventKind(StrEnum):
    LOADED = "loaded"
    EVICTED = "evicted"
    UNLOADED = "unloaded"
    FAILED = "failed"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class FleetEvent:
    at_s: float
    """In seconds since 1970."""
    kind: FleetEventKind
    model: str
    server: str
    reason: str
    """Why, in a sentence without its full stop; empty where the kind says it."""
    seconds: float = 0.0
    """That it took; 0 where it takes none."""
