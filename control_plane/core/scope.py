"""Scopes of keys and tokens: what their holder may do, written such as `infer:text_*`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase

from control_plane.core.errors import InvalidRequest
from control_plane.core.model import NAME_GLOB


class Right(StrEnum):
    """Kind of a permission."""

    INFER = "infer"
    """Inference and metadata, for models and routes whose names match a pattern."""
    REPOSITORY = "repository"
    """The repository's index, loading and unloading of its models as they are there, and Triton's settings;
    over HTTP, gRPC and the admin API."""
    ADMIN = "admin"
    """Everything, including keys, tenants and usage, and loads that bring a configuration or files: those run
    the caller's code."""
    METRICS = "metrics"
    """The metrics page."""


_MAX_NAMES = 1000
"""Names remembered for one principal; bounded, since callers can invent any number."""


@dataclass(frozen=True, slots=True)
class Scope:
    """One permission of a key or token; `pattern` is a glob over model and route names, for INFER only."""

    right: Right
    pattern: str = ""

    def __str__(self) -> str:
        return f"{self.right}:{self.pattern}" if self.pattern else str(self.right)


def parse_scope(text: str) -> Scope:
    """Read `infer:GLOB`, `repository`, `admin` or `metrics`. Raises InvalidRequest."""
    right, colon, pattern = text.partition(":")
    if right == Right.INFER and NAME_GLOB.fullmatch(pattern):
        return Scope(Right.INFER, pattern)
    if right in set(Right) - {Right.INFER} and not colon:
        return Scope(Right(right))
    raise InvalidRequest(f"scope {text[:100]!r}: expected infer:GLOB (such as infer:text_*), repository, admin or metrics")


@dataclass(frozen=True, slots=True)
class Scopes:
    """All permissions of one principal."""

    scopes: tuple[Scope, ...]
    _allowed: set[str] = field(default_factory=set, compare=False, repr=False)
    """Names that a request has asked for and that are allowed: a memo, since matching globs takes longer."""

    def allow(self, right: Right, name: str = "") -> bool:
        """Whether they include `right`, for INFER on the model or route `name`. ADMIN includes everything."""
        return any(
            scope.right is Right.ADMIN or (scope.right is right and (right is not Right.INFER or fnmatchcase(name, scope.pattern)))
            for scope in self.scopes
        )

    def allow_inference(self, name: str) -> bool:
        """Whether they allow inference on `name`; memoized, since every request asks."""
        if name in self._allowed:
            return True
        is_allowed = self.allow(Right.INFER, name)
        if is_allowed:
            if len(self._allowed) >= _MAX_NAMES:
                self._allowed.clear()  # the names in use are soon there again
            self._allowed.add(name)
        return is_allowed

    def allow_any_inference(self) -> bool:
        """Whether they allow inference on any name at all."""
        return any(scope.right in (Right.ADMIN, Right.INFER) for scope in self.scopes)


EVERYTHING = Scopes((Scope(Right.ADMIN),))
