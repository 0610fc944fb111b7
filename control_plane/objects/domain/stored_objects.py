"""Codec of stored objects: API keys, tenants, routes, prices, purges, rollouts, their policies, what was applied, and the
secrets of webhooks.

The same rules (`objects/domain/validation`) apply to writes and to reads, since a store may have been written by another
version, or by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from control_plane.core.errors import InvalidRequest
from control_plane.core.scope import parse_scope
from control_plane.objects.domain.api_key import ApiKey
from control_plane.objects.domain.applied import Applied, record_name
from control_plane.objects.domain.price import Price
from control_plane.objects.domain.purge import Purge
from control_plane.objects.domain.rollout import Rollout
from control_plane.objects.domain.rollout_policy import RolloutPolicy
from control_plane.objects.domain.route import Route
from control_plane.objects.domain.stored import Kind, Stored
from control_plane.objects.domain.tenant import Tenant
from control_plane.objects.domain.validation import problems
from control_plane.objects.domain.webhook_secret import WebhookSecret

StoredObject = ApiKey | Tenant | Route | Price | Purge | Rollout | RolloutPolicy | Applied | WebhookSecret

KIND_OF: Mapping[type[Any], Kind] = {
    ApiKey: Kind.API_KEY,
    Tenant: Kind.TENANT,
    Route: Kind.ROUTE,
    Price: Kind.PRICE,
    Purge: Kind.PURGE,
    Rollout: Kind.ROLLOUT,
    RolloutPolicy: Kind.ROLLOUT_POLICY,
    Applied: Kind.APPLIED,
    WebhookSecret: Kind.WEBHOOK_SECRET,
}

_TYPE_OF: Mapping[Kind, type[Any]] = {kind: type_ for type_, kind in KIND_OF.items()}


@cache
def _adapter_of(kind: Kind) -> TypeAdapter[Any]:
    return TypeAdapter(_TYPE_OF[kind])


def name_of(value: StoredObject) -> str:
    """Return the name that an object is stored under."""
    match value:
        case ApiKey() | WebhookSecret():
            return value.id
        case Purge():
            return value.model
        case Rollout():
            return value.route
        case Applied():
            return record_name(value.kind, value.name)
    return value.name


def to_body(value: StoredObject) -> dict[str, Any]:
    """Encode an object for a store. Raises InvalidRequest: values that are not allowed; the text names all of
    them.
    """
    check(value)
    body: dict[str, Any] = _adapter_of(KIND_OF[type(value)]).dump_python(value, mode="json")
    if isinstance(value, ApiKey):
        body["scopes"] = [str(scope) for scope in value.scopes]
    return body


def from_stored(stored: Stored) -> StoredObject:
    """Decode a stored object. Raises InvalidRequest: it was deleted, cannot be read or has values that are
    not allowed.
    """
    where = f"{stored.kind} {stored.name[:100]!r}"
    if stored.kind not in set(Kind):
        raise InvalidRequest(f"{where}: what that is only a newer version knows")
    if stored.body is None:
        raise InvalidRequest(f"{where} was deleted")
    if not isinstance(stored.body, Mapping):
        raise InvalidRequest(f"{where}: it is no object")
    try:
        value: StoredObject = _adapter_of(Kind(stored.kind)).validate_python(_parsed(Kind(stored.kind), stored.body), extra="forbid")
    except ValidationError as exc:
        # `from None`, without values and without pydantic's own text: a body may contain what must not appear
        # in a log.
        fields = ", ".join(sorted({".".join(map(str, error["loc"])) for error in exc.errors(include_input=False, include_url=False)}))
        raise InvalidRequest(f"{where}: cannot be read: {fields[:300]}") from None
    check(value)
    if name_of(value) != stored.name:
        raise InvalidRequest(f"{where}: it holds another name")
    return value


def check(value: StoredObject) -> None:
    """Raise InvalidRequest if an object has values that are not allowed; the text names all of them and what
    would be right.
    """
    found = "; ".join(problems(value))
    if found:
        raise InvalidRequest(f"{KIND_OF[type(value)]} {name_of(value)[:100]!r}: {found}")


def _parsed(kind: Kind, body: Mapping[str, Any]) -> Mapping[str, Any]:
    scopes = body.get("scopes")
    if kind is not Kind.API_KEY or not isinstance(scopes, list | tuple):
        return body
    return {**body, "scopes": tuple(parse_scope(str(scope)) for scope in scopes)}
