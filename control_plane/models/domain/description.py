"""Description of a model by its folder and configuration, before it is loaded: what it needs, and how it
wants to be placed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class DescribedModel:
    """Description of a model that may not be loaded yet."""

    spec: ModelSpec
    file_bytes: int
    """Size of the files of the versions that are loaded, with those of an ensemble's steps. A server needs more memory; that
    is measured when the model is loaded.
    """
    steps: frozenset[str] = frozenset()
    """Models that an ensemble needs, directly or indirectly; its load loads them too."""
    has_sequences: bool = False
    changed_ns: int = field(default=0, compare=False)
    """When its configuration or files last changed, on this machine's clock; 0 where nobody knows."""
    fetch_s: float | None = field(default=None, compare=False)
    """Seconds that a fetch of its files takes where only a store has them, so that nothing but its name is known; None
    where they are here."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Placement spec of a model, as its owner declares it."""

    name: str
    resident_bytes: int | None = None
    """Declared memory; None to measure it."""
    min_replicas: int = 0
    """Replicas that stay loaded whatever the demand; at least one for a pinned model."""
    max_replicas: int | None = None
    """Most replicas; None for as many as there are servers."""
    priority: int = 0
    """Tie-break of eviction: of two models that are worth the same the one with the higher priority stays."""
    latency_objective_s: float | None = None
    """Objective for the 99th percentile of latency; None for no objective of its own."""
    server_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that a server must have to be chosen (a node selector); empty for any server."""
    is_repeatable: bool = False
    """Whether equal requests have equal answers, so that one may be sent again, or to two servers."""
    instances: int = 1
    """Instances of one replica, which compute at a time: at least so many (its configuration's `instance_group`)."""
    sharded: str = ""
    """Configuration (JSON, as Triton tells it) of an ensemble whose steps the gateway carries out, and which is loaded nowhere; empty
    for any other model."""


class Tier(StrEnum):
    """Storage tier of a model, nearest first; a move to a nearer tier takes time."""

    HOT = "hot"
    """Loaded into a server."""
    WARM = "warm"
    """On the server's own disk or in its memory file system."""
    COLD = "cold"
    """In an object store, or in a folder that is not the server's own."""
