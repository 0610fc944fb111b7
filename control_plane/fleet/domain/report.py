"""What one process tells the owner of its fleet: how it has used the fleet, and what it waits for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class CopyUse:
    """How one process uses one loaded copy of a model."""

    in_flight: int = 0
    sequences: int = 0


@dataclass(frozen=True, slots=True)
class Wanted:
    """Another copy of a model."""

    model: str
    ready: int
    """Copies that the process saw: where there are more now, its wish has come true."""
    pool: str | None = None
    """Where it should be; None: anywhere."""


@dataclass(frozen=True, slots=True)
class FleetReport:
    """It replaces the one before it, whose uses have been counted."""

    process: str
    """A name that no other process has."""
    uses: Mapping[str, int] = field(default_factory=dict)
    """Requests since its last report, by model, served or turned away."""
    services: Mapping[str, float] = field(default_factory=dict)
    """Seconds of one request, mean, of models of which it has measured since."""
    copies: Mapping[str, Mapping[str, CopyUse]] = field(default_factory=dict)
    """What is under way now, by the server's address and by model. (Processes name servers each in its own way.)"""
    wanted: tuple[Wanted, ...] = ()
    """What its requests wait for."""
    ejected: tuple[str, ...] = ()
    """Servers that answer its requests too slowly or not at all, by address."""
    died: tuple[tuple[str, str], ...] = ()
    """Copies, by address and model, that are listed as ready and answer that their process has died."""
