"""What the holder of a key or token may do, in words such as `infer:text_*`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase

from control_plane.core.errors import InvalidRequest
from control_plane.core.model import NAME_GLOB


class Right(StrEnum):
    """The kinds of things that can be allowed."""

    INFER = "infer"
    """Inference, and reading what a model is; of the models and routes whose name a pattern matches."""
    REPOSITORY = "repository"
    """Loading and unloading models as their repository has them, its index, and Triton's settings, through either door or the admin API."""
    ADMIN = "admin"
    """Everything, also keys, tenants and usage, and loads that bring a configuration or files: these run what their caller wrote."""
    METRICS = "metrics"
    """The metrics port."""


_MOST_NAMES = 1000
"""Remembered of one principal: callers can make up any number."""


@dataclass(frozen=True, slots=True)
class Scope:
    """One of a key's rights; `pattern` is a glob of names, for INFER only."""

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
    """All that one principal may do."""

    scopes: tuple[Scope, ...]
    _allowed: set[str] = field(default_factory=set, compare=False, repr=False)
    """Names that were asked for and are allowed; matching a glob takes longer."""

    def allow(self, right: Right, name: str = "") -> bool:
        """Whether they include `right`; for INFER, of the model or route `name`. ADMIN includes everything."""
        return any(
            scope.right is Right.ADMIN or (scope.right is right and (right is not Right.INFER or fnmatchcase(name, scope.pattern)))
            for scope in self.scopes
        )

    def allow_inference(self, name: str) -> bool:
        """`allow` of INFER, for every request."""
        if name in self._allowed:
            return True
        is_allowed = self.allow(Right.INFER, name)
        if is_allowed:
            if len(self._allowed) >= _MOST_NAMES:
                self._allowed.clear()  # what is in use is soon there again
            self._allowed.add(name)
        return is_allowed

    def allow_any_inference(self) -> bool:
        """Whether there is a name that they allow inference of."""
        return any(scope.right in (Right.ADMIN, Right.INFER) for scope in self.scopes)


EVERYTHING = Scopes((Scope(Right.ADMIN),))
