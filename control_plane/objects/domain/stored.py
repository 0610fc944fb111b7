"""What the control plane must remember: named objects of a kind, as a store keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from control_plane.core.errors import Conflict, StoreUnavailable


class Kind(StrEnum):
    """What is kept. A store knows nothing of what is inside."""

    API_KEY = "api_key"
    TENANT = "tenant"
    ROUTE = "route"
    PRICE = "price"
    PURGE = "purge"


_KINDS = {kind.value: kind for kind in Kind}


def kind_named(text: str) -> str:
    """A `Kind` if there is one of that name here; a newer version may have written others."""
    return _KINDS.get(text, text)


@dataclass(frozen=True, slots=True)
class Stored:
    """One object in one form; `body` is what JSON can hold, None of an object that was deleted."""

    kind: str
    """A `Kind`, or one that only a newer version knows."""
    name: str
    resource_version: int
    """Of the whole store: each change takes the next number, so that they order all changes."""
    body: Mapping[str, Any] | None


def check_expected(kind: Kind, name: str, *, expected: int | None, current: int) -> None:
    """Whether a write may go ahead, by the resource_version that the object has now (0: there is none). Raises Conflict."""
    if expected is None or expected == current:
        return
    if expected == 0:
        raise Conflict(f"{kind} {name!r} exists already, with resource_version {current}")
    now = f"it has {current}" if current else "there is none of that name"
    raise Conflict(f"{kind} {name!r} was to have resource_version {expected}, and {now}: it has been changed meanwhile; read it again")


def check_not_older(*, since: int, last: int) -> None:
    """Whether a store can have given `since` before, when its last change is `last`. Raises StoreUnavailable."""
    if last < since:
        raise StoreUnavailable(
            f"the store's last change is {last}, and {since} was read from it before: it has lost changes, or is another one"
        )
