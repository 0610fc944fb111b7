"""Load reports: what a process tells its fleet's leader about its use of the fleet, and the replicas that its requests wait for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ReplicaUse:
    """Use of one replica by one process at the moment."""

    in_flight: int = 0
    sequences: int = 0


@dataclass(frozen=True, slots=True)
class Wanted:
    """Request of a process for one more replica of a model."""

    model: str
    ready: int
    """Ready replicas that the process saw. If there are more by now, the request has been met: the same one
    is sent again until then."""
    pool: str | None = None
    """The pool where the replica should be; None if any will do."""


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Load report of one process. It replaces the one before it, whose `uses` have been counted."""

    process: str
    """A name that no other process has."""
    uses: Mapping[str, int] = field(default_factory=dict)
    """Requests since the last report by model, whether served or refused."""
    services: Mapping[str, float] = field(default_factory=dict)
    """Mean service time in seconds of each model that has been measured since the last report."""
    replicas: Mapping[str, Mapping[str, ReplicaUse]] = field(default_factory=dict)
    """What is in flight now, by the server's address and by model. (Addresses, since each process names
    servers in its own way.)"""
    wanted: tuple[Wanted, ...] = ()
    """Replicas that the process's requests wait for."""
    ejected: tuple[str, ...] = ()
    """Addresses of the servers that answer this process's requests too slowly or not at all."""
    died: tuple[tuple[str, str], ...] = ()
    """Replicas, as (address, model), that the index lists as ready but that answer that their Python stub has
    died."""
