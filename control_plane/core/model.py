"""Models as Triton's repository API speaks of them (extension_model_repository.md)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache

from control_plane.core.errors import InvalidRequest

MODEL_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._~+:@-]{0,254}")
"""Names that mean the same to everybody who reads them, in a path, a label, a file and Triton's control API (CVE-2025-23316 was one that
did not). Triton 24.10 takes any folder's name; of those that are left out here it cuts off a gRPC name at a NUL, its Python backend hangs
over blanks and what a shell reads, and its HTTP endpoint, which decodes no `%20`, cannot be asked for most of them."""

NAME_RULE = "1-255 letters, digits and any of . _ ~ + : @ -, beginning with a letter, a digit, '_' or '-'"
NAME_GLOB = re.compile(r"[A-Za-z0-9._~+:@*?-]{1,128}")
"""Patterns of such names, as `fnmatch` has them."""

MODEL_VERSION = re.compile("[0-9]{1,18}")
"""Folders' names, below 2**63. What Triton takes for a version of its own accord may begin with blanks, and go on in letters."""

UNKNOWN_MODEL = "(unknown)"
"""Stands for every name that no model has, wherever something is counted or kept by models' names; no model can be called that."""

_SHOWN_CHARS = 100


def check_name(name: str) -> None:
    """Raises InvalidRequest: no model can be called that."""
    if not MODEL_NAME.fullmatch(name):
        raise InvalidRequest(f"{name[:_SHOWN_CHARS]!r} cannot be a model's name, which is {NAME_RULE}")


@lru_cache(maxsize=4096)
def check_reference(name: str, version: str) -> None:
    """Make sure that a request names what can be a model's or route's name, and a version; either may be left out.

    Raises:
        InvalidRequest: two readers could take it for different models.
    """
    if name:
        check_name(name)
    if version and not MODEL_VERSION.fullmatch(version):
        raise InvalidRequest(f"{version[:_SHOWN_CHARS]!r} cannot be a model's version, which is a number of 1-18 digits")


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
class ServedVariant:
    """The variant of a model that is served, by the word of the backend that has chosen it, and why it and no other."""

    name: str
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
    variant: ServedVariant | None = None
    """None of a model that has none, or is not loaded."""


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


def summarise(name: str, index: list[ModelVersion], memory_bytes: int | None = None, variant: ServedVariant | None = None) -> Model:
    """Fold the index lines of one model into a `Model`; no line at all means it is not loaded."""
    own = sorted((line for line in index if line.name == name), key=lambda line: rank_of(line.state))
    state, reason = (own[0].state, own[0].reason) if own else (ModelState.UNAVAILABLE, "")
    ready = tuple(line.version for line in own if line.state is ModelState.READY)
    return Model(name=name, state=state, reason=reason, versions=ready, memory_bytes=memory_bytes, variant=variant)
