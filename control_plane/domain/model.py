"""Models as Triton's repository API speaks of them (extension_model_repository.md)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

MODEL_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}")
"""Names that are safe in a path, a label and Triton's control API (CVE-2025-23316 was a name that was not)."""


class ModelState(Enum):
    """Triton's states of one model version."""

    UNAVAILABLE = "UNAVAILABLE"
    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """One line of Triton's RepositoryIndex; `version` is empty for a model that was never loaded."""

    name: str
    version: str
    state: ModelState
    reason: str


@dataclass(frozen=True, slots=True)
class Model:
    """A model as the admin API shows it: its best version's state, and all versions Triton reports."""

    name: str
    state: ModelState
    reason: str
    versions: tuple[str, ...]
    memory_bytes: int | None
    """As Triton reports it; None where the backend does not say (only native ONNX Runtime and TensorRT do)."""


@dataclass(frozen=True, slots=True)
class ModelOverride:
    """What a load brings along in place of the repository's (extension_model_repository.md, load parameters)."""

    config: str | None = None
    """A whole model configuration as JSON, instead of `config.pbtxt`; Triton wants one beside `files`."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Contents by Triton's key, `file:<version>/<name>`. Given any, Triton takes nothing from the repository."""


_BEST_FIRST = (ModelState.READY, ModelState.LOADING, ModelState.UNLOADING, ModelState.UNAVAILABLE)


def rank_of(state: ModelState) -> int:
    """The better one has the smaller."""
    return _BEST_FIRST.index(state)


def summarise(name: str, index: list[ModelVersion], memory_bytes: int | None = None) -> Model:
    """Fold the index lines of one model into a `Model`; no line at all means it is not loaded."""
    own = sorted((line for line in index if line.name == name), key=lambda line: rank_of(line.state))
    state, reason = (own[0].state, own[0].reason) if own else (ModelState.UNAVAILABLE, "")
    ready = tuple(line.version for line in own if line.state is ModelState.READY)
    return Model(name=name, state=state, reason=reason, versions=ready, memory_bytes=memory_bytes)
