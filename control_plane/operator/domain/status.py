"""Status of a Model resource: its conditions, each with a reason and a message, by Kubernetes' API conventions.

`Accepted` says whether the specification is in force, `Ready` whether the fleet is as it says. A condition's
`lastTransitionTime` changes with its status only, so that a status in which nothing has changed is equal to the last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from control_plane.fleet.domain.memory import EVERYWHERE, DesiredState, Progress

_MAX_MESSAGE_CHARS = 1024
"""The API server refuses messages beyond 32,768 characters."""


@dataclass(frozen=True, slots=True)
class Condition:
    """Condition of a resource without its times."""

    status: str
    """`True`, `False` or `Unknown`."""
    reason: str
    """One word in CamelCase, for programs."""
    message: str = ""


APPLIED = Condition("True", "Applied", "the fleet is to be as this says")
NOT_YET = Condition("Unknown", "Pending", "no gateway has looked at this specification yet")


def conflict(owner: str, model: str) -> Condition:
    """Condition of a resource whose model another owner applies."""
    return Condition(
        "False", "Conflict", f"owner {owner!r} applies it: take it out of that owner's files, then `tidegate delete Model {model}`"
    )


def duplicate(first: str) -> Condition:
    """Condition of a resource for whose model an older one counts."""
    return Condition("False", "Duplicate", f"Model {first} is older and names the same model; delete one of them")


def refused(reason: str, message: str) -> Condition:
    """Condition of a resource that cannot be applied as it is."""
    return Condition("False", reason, message)


def readiness(desired: DesiredState | None, progress: Progress) -> Condition:
    """Return the condition `Ready` of a model whose specification is in force."""
    if desired is None:
        return Condition("Unknown", "Pending", "the gateway has not taken it up yet")
    if desired.is_suspended:
        if progress.held:
            return Condition("False", "Unloading", "it leaves its servers once their requests in flight have ended")
        return Condition("True", "Suspended", "it is on no server, and no request loads it")
    wanted = progress.ready + progress.missing if desired.min_replicas == EVERYWHERE else desired.min_replicas or 0
    if progress.ready >= wanted and not (desired.min_replicas == EVERYWHERE and not wanted):
        return Condition("True", "Loaded", "") if wanted else Condition("True", "OnDemand", "requests load it")
    if progress.failure:
        return Condition("False", "LoadFailed", progress.failure)
    if progress.is_loading:
        return Condition("False", "Loading", "")
    return Condition("False", "Waiting", "for a server that suits it and has room beside what is to stay loaded")


def status_of(
    before: Mapping[str, Any], *, generation: int, accepted: Condition, ready: Condition, replicas: int, now: str
) -> dict[str, Any]:
    """Return the whole status; equal to `before` where nothing has changed. `now` is an RFC 3339 time."""
    known = {each.get("type"): each for each in before.get("conditions") or () if isinstance(each, Mapping)}
    conditions = []
    for type_, condition in (("Accepted", accepted), ("Ready", ready)):
        last = known.get(type_, {})
        since = last.get("lastTransitionTime") if last.get("status") == condition.status else None
        conditions.append(
            {
                "type": type_,
                "status": condition.status,
                "reason": condition.reason,
                "message": condition.message[:_MAX_MESSAGE_CHARS],
                "observedGeneration": generation,
                "lastTransitionTime": since or now,
            }
        )
    return {"observedGeneration": generation, "replicas": replicas, "conditions": conditions}
