"""Snapshots of a process's view of the fleet, for a process that mirrors it (`fleet/view/mirror`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from control_plane.core.model import ModelState
from control_plane.models.domain.description import ModelSpec, Tier


@dataclass(frozen=True, slots=True)
class ServerSnapshot:
    """A server of the fleet, with what is needed to route requests."""

    budget_bytes: int
    pool: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    is_draining: bool = False


@dataclass(frozen=True, slots=True)
class ReplicaSnapshot:
    """A replica of a model on one server."""

    life: int
    """Identity of the replica: another number means that it was loaded anew, even if all else is equal."""
    state: ModelState
    bytes: int
    since_s: float
    """When the replica got into its state, by the machine's monotonic clock, which all processes share."""
    ready_s: float | None
    """When the replica's load is expected to end, by the same clock; None: it is not loading."""
    is_step: bool = False
    is_dead: bool = False
    """Its stub has died."""
    has_hung: bool = False
    """Its dead stub was ended, since it computed nothing."""
    hangs: bool = False
    """Its load has taken longer than a load may."""


@dataclass(frozen=True, slots=True)
class ModelSnapshot:
    """A model, as its description and its measurements show it."""

    spec: ModelSpec
    tier: Tier
    resident_bytes: int
    load_s: float
    service_s: float
    """The mirrored process's estimate, from which the other one starts until it has measured its own."""
    has_sequences: bool = False
    is_suspended: bool = False
    failures: int = 0
    quarantined_until_s: float = 0.0
    """In seconds since 1970."""
    why: str = ""
