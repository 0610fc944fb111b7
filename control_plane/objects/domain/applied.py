"""Records of what was applied to an object, by which later applications tell removed fields from other people's.

Written by `admin/declared/service`. Kubernetes keeps the same in an annotation (`last-applied-configuration`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Applied:
    """Last applied configuration of one object, and its owner (field manager)."""

    kind: str
    """Kind of the object, such as `Route`."""
    name: str
    owner: str
    """Who applies it, such as `ci`."""
    spec: Mapping[str, Any] = field(default_factory=dict)
    """Fields as they were given; those that were not given are not in it."""


def record_name(kind: str, name: str) -> str:
    """The name that a record is stored under."""
    return f"{kind}:{name}"


def merged(live: Mapping[str, Any], last: Mapping[str, Any], desired: Mapping[str, Any]) -> dict[str, Any]:
    """Three-way merge of an object's fields: the desired ones win, those that were applied before and are desired
    no more are left out (and so get their defaults), and all others stay as they are. Lists count as a whole.
    """
    kept = {name: value for name, value in live.items() if name in desired or name not in last or _holds(last, live, name)}
    for name in [name for name in kept if name not in desired and name in last]:
        kept[name] = merged(live[name], last[name], {})
    for name, value in desired.items():
        kept[name] = merged(_mapping(live, name), _mapping(last, name), value) if isinstance(value, Mapping) else value
    return kept


def _holds(last: Mapping[str, Any], live: Mapping[str, Any], name: str) -> bool:
    """Whether the field has fields of its own on both sides: of these some may be another's."""
    return isinstance(last[name], Mapping) and isinstance(live[name], Mapping)


def _mapping(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = fields.get(name)
    return found if isinstance(found, Mapping) else {}
