"""Authorization: which right each call needs, and whether a principal has it. Pure; called through
`auth/access`.

These are the only tables from calls to rights. A call that is in none of them fails, so that a new one cannot
be open by oversight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from control_plane.core.action import Action
from control_plane.core.principal import Principal
from control_plane.core.scope import Right
from control_plane.objects.domain.route import Route


@dataclass(frozen=True, slots=True)
class Need:
    """Required right of a call; for INFER also the model or route that it names."""

    right: Right
    name: str = ""
    """Model or route; empty for a call that is about no model in particular, for which the right to infer on
    any is enough.
    """
    why: str = ""
    """Reason for the caller, where the call needs more than calls of its kind usually do."""
    also: tuple[Right, ...] = ()
    """Rights each of which is enough as well."""


METRICS_NEED = Need(Right.METRICS)
"""Need of a scrape of the metrics port."""

OVERRIDE_NEED = Need(Right.ADMIN, why="a load that brings its own configuration or files has the server run what its caller wrote")
"""Need of a load with Triton's parameters `config` or `file:...`; a load of the model as the repository has
it needs less.
"""

_OF_ACTION: Mapping[Action, Right | None] = {
    Action.LIVE: None,
    Action.READY: None,
    Action.OPTIONS: None,
    Action.INFER: Right.INFER,
    Action.GENERATE: Right.INFER,
    Action.READ: Right.INFER,
    Action.MODEL_READY: Right.INFER,
    Action.STATISTICS: Right.INFER,
    Action.EMBED: Right.INFER,
    Action.COMPLETE: Right.INFER,
    Action.CHAT: Right.INFER,
    Action.LIST_MODELS: Right.INFER,
    Action.SUBMIT_JOB: Right.INFER,
    Action.LIST_JOBS: Right.INFER,
    Action.READ_JOB: Right.INFER,
    Action.JOB_RESULT: Right.INFER,
    Action.JOB_EVENTS: Right.INFER,
    Action.CANCEL_JOB: Right.INFER,
    Action.COMPUTE_JOB: Right.ADMIN,
    Action.EVENTS: Right.EVENTS,
    Action.FILES: Right.INFER,
    Action.BATCHES: Right.INFER,
    Action.INDEX: Right.REPOSITORY,
    Action.LOAD: Right.REPOSITORY,
    Action.UNLOAD: Right.REPOSITORY,
    Action.ADMIN: Right.REPOSITORY,
    Action.SHARED_MEMORY: Right.REPOSITORY,
}

_READ, _RUN, _ADMIN = Need(Right.VIEWER), Need(Right.OPERATOR), Need(Right.ADMIN)
_OF_ADMIN_PATH: Mapping[str, tuple[Need | None, Need | None]] = {
    "health": (None, None),
    "version": (None, None),
    "console": (None, _ADMIN),
    "models": (Need(Right.VIEWER, also=(Right.REPOSITORY,)), Need(Right.OPERATOR, also=(Right.REPOSITORY,))),
    "whoami": (Need(Right.VIEWER, also=(Right.REPOSITORY,)), _ADMIN),
    "fleet": (Need(Right.VIEWER, also=(Right.REPOSITORY,)), _ADMIN),
    "regions": (Need(Right.VIEWER, also=(Right.REPOSITORY,)), _ADMIN),
    "rollouts": (_READ, _RUN),
    "dead-jobs": (_READ, _RUN),
    "cache": (_READ, _RUN),
    "objects/Model": (_READ, _RUN),
    "objects/RolloutPolicy": (_READ, _RUN),
    **dict.fromkeys(("objects", "keys", "webhook-secrets", "tenants", "routes", "prices"), (_READ, _ADMIN)),
    **dict.fromkeys(("usage", "audit", "events", "schema", "openapi.json"), (_READ, _ADMIN)),
}
"""Needs of the admin API, to read and to change, by the first one or two segments of the path; what is not here needs ADMIN.

Whoever may change routes decides who may call which model, so that is no day-to-day work. The audit log may be read by
whoever may read what it is about: it has no secrets.
"""
_READING = frozenset(("GET", "HEAD"))

_MAX_NAME_CHARS = 100


def need_of_call(action: Action, name: str = "") -> Need | None:
    """Return the need of a call to a data port, None if it needs no right; `name` is the model or route as
    the caller wrote it.
    """
    right = _OF_ACTION[action]
    return None if right is None else Need(right, name)


def need_of_admin_call(method: str, path: str) -> Need | None:
    """Return the need of a call to the admin API by its method and decoded path, None if it needs no right."""
    first, _, rest = path.removeprefix("/").partition("/")
    # A path that is not in the table needs the most, so that a new one is not open by oversight.
    otherwise = _OF_ADMIN_PATH.get(first, (_ADMIN, _ADMIN))
    read, change = _OF_ADMIN_PATH.get(f"{first}/{rest.partition('/')[0]}", otherwise)
    return read if method in _READING else change


def refusal(principal: Principal, need: Need | None, *, route: Route | None = None) -> str | None:
    """Return why `principal` may not make a call with this need, or None if it may; `route` is the one that
    the call names, if any.
    """
    if need is None or _has(principal, need):
        return _refusal_of_route(principal, need, route)
    if need.right is not Right.INFER:
        return f"this needs the scope {' or '.join((need.right, *need.also))}" + (f": {need.why}" if need.why else "")
    if not need.name:
        return "this needs the right to infer: a scope infer:GLOB"
    name = need.name[:_MAX_NAME_CHARS]
    return f"{name!r} needs a scope that its name fits, such as infer:*"


def _has(principal: Principal, need: Need) -> bool:
    if need.right is Right.INFER and not need.name:
        return principal.scopes.allow_any_inference()
    return any(principal.scopes.allow(right, need.name) for right in (need.right, *need.also))


def _refusal_of_route(principal: Principal, need: Need | None, route: Route | None) -> str | None:
    """Return why the route is closed to the principal, or None. ADMIN opens every route: it could add itself
    to the list.
    """
    if need is None or need.right is not Right.INFER or route is None or route.tenants is None:
        return None
    if principal.tenant in route.tenants or principal.scopes.allow(Right.ADMIN):
        return None
    return f"route {route.name!r} is not open to this tenant"
