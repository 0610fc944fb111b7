"""What the admin API takes and shows of keys, tenants, routes and prices; field texts are those of its OpenAPI document."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated, Any, Generic, Self, TypeVar

from fastapi import Path
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from control_plane.core.model import MODEL_NAME, NAME_GLOB, NAME_RULE
from control_plane.core.scope import Scope, parse_scope
from control_plane.objects.domain.api_key import ApiKey
from control_plane.objects.domain.price import Price
from control_plane.objects.domain.route import CachePolicy, Route
from control_plane.objects.domain.stored_objects import (
    CURRENCY,
    KEY_ID,
    MAX_DESCRIPTION_CHARS,
    MAX_PRIORITY,
    POOL_OR_NONE,
    VERSION,
    to_body,
)
from control_plane.objects.domain.tenant import Tenant
from control_plane.objects.objects import Held

NAME = f"^{MODEL_NAME.pattern}$"
NAME_OR_NONE = f"^({MODEL_NAME.pattern})?$"
_SCOPE = f"^(infer:{NAME_GLOB.pattern}|repository|admin|metrics)$"

_LEAST_RATE = 1e-6
_MOST = 1e9
"""Of any limit: beyond what can be reached, and far from what arithmetic with them can bear."""
_MAX_TIME_S = 253_402_300_799.0
"""The last second of the year 9999."""
_MAX_LIFETIME_S = 100 * 366 * 86_400.0

Name = Annotated[str, Path(pattern=NAME, description=f"{NAME_RULE[0].upper()}{NAME_RULE[1:]}.")]
KeyId = Annotated[str, Path(pattern=f"^{KEY_ID.pattern}$", description="The part of a key between `tg_` and the secret.")]

_NameText = Annotated[str, Field(pattern=NAME)]
_ScopeText = Annotated[str, Field(pattern=_SCOPE)]
_Limit = Annotated[float, Field(allow_inf_nan=False, ge=0, le=_MOST)]
_Whole = BeforeValidator(lambda given: int(given) if isinstance(given, float) and given.is_integer() else given)
"""To JSON, and so to the document, 2.0 is an integer. Stands behind the bounds, which the document would lose otherwise."""
_Count = Annotated[int, Field(ge=1, le=int(_MOST)), _Whole]


class _View(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)


ObjectT = TypeVar("ObjectT", Tenant, Route, Price)


class _Object(_View, Generic[ObjectT]):
    name: str
    resource_version: int
    """Of its last change; the ETag, without the quotes."""

    @classmethod
    def of(cls, held: Held[ObjectT]) -> Self:
        """Without checking: what another version wrote may be beyond today's bounds, and is shown all the same."""
        body: dict[str, Any] = to_body(held.value)
        return cls.model_construct(resource_version=held.resource_version, **body)


class TenantSpec(_View):
    """What a tenant may use; null is no limit."""

    requests_per_s: Annotated[_Limit, Field(ge=_LEAST_RATE)] | None = None
    burst: _Count | None = None
    """Requests that may come at once; null is one second's worth, at least 1."""
    concurrency: _Count | None = None
    """Requests that may be under way."""
    daily_compute_units: Annotated[float, Field(allow_inf_nan=False, ge=0, le=1e15)] | None = None
    """From midnight to midnight, UTC. One unit is a millisecond of one instance at batch 1."""
    weight: Annotated[float, Field(allow_inf_nan=False, ge=1e-3, le=1e6)] = 1.0
    """Its share of a model that cannot serve everybody, next to the other tenants' weights."""
    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY), _Whole] = 0
    """Tenants of a higher one are served first where a model cannot serve everybody; weights count among equals."""

    def named(self, name: str) -> Tenant:
        return Tenant(name=name, **self.model_dump())

    def patched(self, tenant: Tenant) -> Tenant:
        """With what is given, and the rest as it was."""
        return replace(tenant, **self.model_dump(exclude_unset=True))


class TenantView(TenantSpec, _Object[Tenant]):
    """One account."""


class CacheSpec(_View):
    """Whether and how answers are kept."""

    is_on: bool | None = None
    """null: as the model's own configuration says (`response_cache { enable: true }`)."""
    ttl_s: Annotated[_Limit, Field(ge=1e-3)] | None = None
    """Seconds; null: as long as the server keeps answers (`cache_ttl_s`)."""
    is_private: bool = False
    """Whether tenants never see each other's entries."""
    min_cost_units: _Limit = 0.0
    """In compute units; what costs less is not kept."""


class RouteSpec(_View):
    """What stands behind a name that callers use."""

    model: _NameText
    """Need not be there yet, and must have another name than the route."""
    version: str = Field("", pattern=f"^{VERSION.pattern}$")
    """Empty: the one that the model's version policy chooses."""
    deadline_s: Annotated[_Limit, Field(ge=1e-3)] | None = None
    """Of requests that name none."""
    tenants: list[_NameText] | None = Field(None, max_length=1000)
    """Who may call it, beside what their scopes say; null is everybody."""
    cache: CacheSpec = CacheSpec()
    pool: str = Field("", pattern=f"^{POOL_OR_NONE.pattern}$")
    """Of servers, to which its requests go where there are such; empty: each by what kind of request it is."""

    def named(self, name: str) -> Route:
        tenants = None if self.tenants is None else tuple(self.tenants)
        cache = CachePolicy(**self.cache.model_dump())
        return Route(name, self.model, version=self.version, deadline_s=self.deadline_s, tenants=tenants, cache=cache, pool=self.pool)


class RoutePatch(RouteSpec):
    """A PATCH of a route: the fields that are to change, the others stay."""

    model: _NameText = Field(default_factory=str)

    def patched(self, route: Route) -> Route:
        """With what is given, of its cache, too, and the rest as it was."""
        changes = self.model_dump(exclude_unset=True)
        if changes.get("tenants") is not None:
            changes["tenants"] = tuple(changes["tenants"])
        if "cache" in changes:
            changes["cache"] = replace(route.cache, **changes["cache"])
        return replace(route, **changes)


class RouteView(RouteSpec, _Object[Route]):
    """A name that callers use, before the model of that name."""

    @classmethod
    def of(cls, held: Held[Route]) -> Self:
        view = super().of(held)
        view.cache = CacheSpec.model_construct(**asdict(held.value.cache))
        return view


class PriceSpec(_View):
    """What a compute unit costs from a moment on, until a later price for the same models and tenant."""

    from_s: float = Field(allow_inf_nan=False, ge=0, le=_MAX_TIME_S)
    """In seconds since 1970; a day (UTC) is charged at the price in force at its start."""
    per_unit: _Limit
    currency: str = Field(pattern=f"^{CURRENCY.pattern}$")
    """Three letters (ISO 4217)."""
    models: str = Field("*", pattern=f"^{NAME_GLOB.pattern}$")
    """A glob."""
    tenant: str = Field("", pattern=NAME_OR_NONE)
    """Empty: for all who have no price of their own."""

    def named(self, name: str) -> Price:
        return Price(name=name, **self.model_dump())


class PricePatch(PriceSpec):
    """A PATCH of a price: the fields that are to change, the others stay."""

    from_s: float = Field(default_factory=float, allow_inf_nan=False, ge=0, le=_MAX_TIME_S)
    per_unit: _Limit = Field(default_factory=float)
    currency: str = Field(default_factory=str, pattern=f"^{CURRENCY.pattern}$")

    def patched(self, price: Price) -> Price:
        """With what is given, and the rest as it was."""
        return replace(price, **self.model_dump(exclude_unset=True))


class PriceView(PriceSpec, _Object[Price]):
    """One price."""


class KeySpec(_View):
    """What a new key is for."""

    tenant: _NameText
    """Must exist."""
    scopes: list[_ScopeText] = Field(min_length=1, max_length=100)
    """`infer:GLOB` of names of models and routes, `repository`, `admin`, `metrics`."""
    lifetime_s: Annotated[float, Field(allow_inf_nan=False, ge=1, le=_MAX_LIFETIME_S)] | None = None
    """From now on; null is for ever."""
    description: str = Field("", max_length=MAX_DESCRIPTION_CHARS)

    def parsed_scopes(self) -> list[Scope]:
        return [parse_scope(text) for text in self.scopes]


class RotationSpec(_View):
    """How a key is replaced."""

    overlap_s: Annotated[float, Field(allow_inf_nan=False, ge=0, le=_MAX_LIFETIME_S)] = 86_400.0
    """For how long the old key is valid beside the new one."""


class KeyView(_View):
    """One key, without what it takes to use it; times are in seconds since 1970."""

    id: str
    tenant: str
    scopes: list[str]
    created_s: float
    expires_s: float | None
    revoked_s: float | None
    """When it was revoked, or will be: a key that is rotated goes on for an overlap."""
    description: str

    @classmethod
    def of(cls, key: ApiKey, **more: str) -> Self:
        fields = to_body(key)
        del fields["secret_sha256"], fields["is_revoked"]  # `revoked_s` tells callers of both
        return cls.model_validate(fields | more)


class NewKeyView(KeyView):
    """A key that has just been made."""

    text: str
    """What callers show. It is told here and never again."""
