"""What a model's configuration says of it before it is loaded: what it needs, and how it wants to be kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class DescribedModel:
    """What a model's folder says of it, before anybody has loaded it."""

    spec: ModelSpec
    file_bytes: int
    """Of the newest version's files, and of an ensemble's steps'; what a server needs for it is more, and known once it has been loaded."""
    steps: frozenset[str] = frozenset()
    """The models that an ensemble needs, directly or not: a load of it loads them too."""
    has_sequences: bool = False
    changed_ns: int = field(default=0, compare=False)
    """When its configuration or files were last changed, on this machine's clock and as far as they are here; 0: nobody knows."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What its owner wants of a model."""

    name: str
    resident_bytes: int | None = None
    """Declared; None: measured."""
    min_copies: int = 0
    """Kept loaded whatever the demand. A pinned model has one at least."""
    max_copies: int | None = None
    """None: as many as there are servers."""
    priority: int = 0
    """Of two that are worth the same the one with the higher stays."""
    latency_objective_s: float | None = None
    """What 99 of 100 requests should take at most; None: no more than the others'."""
    server_labels: Mapping[str, str] = field(default_factory=dict)
    """That a server must have for it; empty: any will do."""


class Tier(StrEnum):
    """Where a model's files are, from the nearest; a move to the next nearer one takes time."""

    HOT = "hot"
    """Loaded into a server."""
    WARM = "warm"
    """On the server's own disk or in its memory file system."""
    COLD = "cold"
    """In an object store, or a folder that is none of the server's."""
