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
    EVENTS = "events"
    """The events of the tenant itself, as a stream on the data port: its usage, and its requests and jobs as they end, whichever of
    its keys they came with."""
    METRICS = "metrics"
    """The metrics page."""
    VIEWER = "viewer"
    """All that the admin API shows. It shows no secret; nothing on the data ports."""
    OPERATOR = "operator"
    """What runs day to day, over the admin API: models, rollouts, dead jobs, the cache; and all that a viewer may. Nothing that
    says who may do what or what it costs: keys, tenants, routes, prices."""


_INCLUDED = {right: frozenset((right,)) for right in Right} | {
    Right.OPERATOR: frozenset((Right.OPERATOR, Right.VIEWER)),
    Right.ADMIN: frozenset(Right),
}
"""Rights that come with each."""


SCOPE_NAMES = "repository, events, metrics, viewer, operator or admin"
"""The scopes without a pattern, for messages and help."""

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
    """Read `infer:GLOB` or the name of another right. Raises InvalidRequest."""
    right, colon, pattern = text.partition(":")
    if right == Right.INFER and NAME_GLOB.fullmatch(pattern):
        return Scope(Right.INFER, pattern)
    if right in set(Right) - {Right.INFER} and not colon:
        return Scope(Right(right))
    raise InvalidRequest(f"scope {text[:100]!r}: expected infer:GLOB (such as infer:text_*), {SCOPE_NAMES}")


@dataclass(frozen=True, slots=True)
class Scopes:
    """All permissions of one principal."""

    scopes: tuple[Scope, ...]
    _allowed: set[str] = field(default_factory=set, compare=False, repr=False)
    """Names that a request has asked for and that are allowed: a memo, since matching globs takes longer."""

    def allow(self, right: Right, name: str = "") -> bool:
        """Whether they include `right`, for INFER on the model or route `name`. ADMIN includes everything, OPERATOR also VIEWER."""
        return any(
            right in _INCLUDED[scope.right] and (scope.right is not Right.INFER or fnmatchcase(name, scope.pattern))
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
