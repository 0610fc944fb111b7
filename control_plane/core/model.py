"""Models as Triton's repository API speaks of them (extension_model_repository.md)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache

from control_plane.core.errors import InvalidRequest

MODEL_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._~+:@-]{0,254}")
"""Names that mean the same in a path, a label, a file name and Triton's control API (CVE-2025-23316 was one
that did not). Triton 24.10 accepts any folder's name. Of the names excluded here, it cuts a gRPC name off at
a NUL, its Python backend hangs over blanks and shell characters, and its HTTP endpoint, which does not decode
`%20`, cannot reach most."""

NAME_RULE = "1-255 letters, digits and any of . _ ~ + : @ -, beginning with a letter, a digit, '_' or '-'"
NAME_GLOB = re.compile(r"[A-Za-z0-9._~+:@*?-]{1,128}")
"""Glob patterns over such names, in the syntax of `fnmatch`."""

MODEL_VERSION = re.compile("[0-9]{1,18}")
"""Versions below 2**63. Triton itself parses versions leniently: leading blanks and trailing letters pass."""

UNKNOWN_MODEL = "(unknown)"
"""Stands for all names that no model has, wherever something is counted by model. No model can have this
name."""

_SHOWN_CHARS = 100


def check_name(name: str) -> None:
    """Raise InvalidRequest if no model can have this name."""
    if not MODEL_NAME.fullmatch(name):
        raise InvalidRequest(f"{name[:_SHOWN_CHARS]!r} cannot be a model's name, which is {NAME_RULE}")


@lru_cache(maxsize=4096)
def check_reference(name: str, version: str) -> None:
    """Check the name and version of a model or route in a request; either may be empty.

    Raises:
        InvalidRequest: the name or version is malformed, so that the gateway and Triton could read it
        differently.
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
    """The variant of a model that is served, and why it was chosen, as its backend reports them."""

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
    """Memory as Triton reports it; None where the backend does not (only native ONNX Runtime and TensorRT
    do)."""
    variant: ServedVariant | None = None
    """None for a model without variants, or one that is not loaded."""


@dataclass(frozen=True, slots=True)
class ModelOverride:
    """Configuration and files in a load request (extension_model_repository.md, load parameters)."""

    config: str | None = None
    """A whole model configuration as JSON, instead of `config.pbtxt`; Triton demands one together with
    `files`."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """File contents by Triton's key `file:<version>/<name>`. If there is one, Triton reads nothing from the
    repository."""


_BEST_FIRST = (ModelState.READY, ModelState.LOADING, ModelState.UNLOADING, ModelState.UNAVAILABLE)


def rank_of(state: ModelState) -> int:
    """Return the rank of a state; the best state, READY, has rank 0."""
    return _BEST_FIRST.index(state)


def lines_by_model(index: Iterable[ModelVersion]) -> dict[str, list[ModelVersion]]:
    """Return the lines of an index by model, for whoever looks at one model after the other."""
    found: dict[str, list[ModelVersion]] = {}
    for line in index:
        found.setdefault(line.name, []).append(line)
    return found


def summarise(name: str, index: list[ModelVersion], memory_bytes: int | None = None, variant: ServedVariant | None = None) -> Model:
    """Fold the index lines of one model into a `Model`; no line at all means it is not loaded."""
    own = sorted((line for line in index if line.name == name), key=lambda line: rank_of(line.state))
    state, reason = (own[0].state, own[0].reason) if own else (ModelState.UNAVAILABLE, "")
    ready = tuple(line.version for line in own if line.state is ModelState.READY)
    return Model(name=name, state=state, reason=reason, versions=ready, memory_bytes=memory_bytes, variant=variant)
