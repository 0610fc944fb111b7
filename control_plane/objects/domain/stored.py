"""Stored form of objects: named, of a kind, with a resource_version; and the rules for optimistic writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from control_plane.core.errors import Conflict, StoreUnavailable


class Kind(StrEnum):
    """Kind of a stored object. A store knows nothing of what is inside one."""

    API_KEY = "api_key"
    TENANT = "tenant"
    ROUTE = "route"
    PRICE = "price"
    PURGE = "purge"
    ROLLOUT = "rollout"
    ROLLOUT_POLICY = "rollout_policy"
    APPLIED = "applied"
    WEBHOOK_SECRET = "webhook_secret"  # noqa: S105


_KINDS = {kind.value: kind for kind in Kind}


def kind_named(text: str) -> str:
    """Return the `Kind` of that name, or the name itself if there is none: a newer version may have written
    other kinds.
    """
    return _KINDS.get(text, text)


@dataclass(frozen=True, slots=True)
class Stored:
    """Revision of an object as a store keeps it."""

    kind: str
    """A `Kind`, or the name of one that only a newer version knows."""
    name: str
    resource_version: int
    """Number of the change that wrote it. Numbers are the whole store's, so they order the changes of all
    objects.
    """
    body: Mapping[str, Any] | None
    """Contents, which JSON can represent; None for an object that was deleted."""


def check_expected(kind: Kind, name: str, *, expected: int | None, current: int) -> None:
    """Raise Conflict unless the object's present resource_version, 0 if there is none, is the expected one;
    None expects any.
    """
    if expected is None or expected == current:
        return
    if expected == 0:
        raise Conflict(f"{kind} {name!r} exists already, with resource_version {current}")
    now = f"it has {current}" if current else "there is none of that name"
    raise Conflict(f"{kind} {name!r} was to have resource_version {expected}, and {now}: it has been changed meanwhile; read it again")


def check_not_older(*, since: int, last: int) -> None:
    """Raise StoreUnavailable if a store whose last change is `last` cannot have returned the resource_version
    `since` before.
    """
    if last < since:
        raise StoreUnavailable(
            f"the store's last change is {last}, and {since} was read from it before: it has lost changes, or is another one"
        )
