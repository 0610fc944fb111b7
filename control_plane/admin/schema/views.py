"""Request and response bodies of the admin API for keys, tenants, routes and prices.

Field docstrings are the texts of the OpenAPI document.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field

from control_plane.admin.schema.described import Described
from control_plane.core.model import MODEL_NAME, NAME_GLOB
from control_plane.core.scope import Right, Scope, parse_scope
from control_plane.objects.domain.api_key import ApiKey
from control_plane.objects.domain.price import Price
from control_plane.objects.domain.route import WHOLE, CachePolicy, FasterModel, HedgingPolicy, Mirror, Route, Target
from control_plane.objects.domain.stored_objects import to_body
from control_plane.objects.domain.tenant import Tenant
from control_plane.objects.domain.validation import (
    CURRENCY,
    MAX_DESCRIPTION_CHARS,
    MAX_PRIORITY,
    MAX_SALT_CHARS,
    MAX_TARGETS,
    POOL_OR_NONE,
    STICKY,
    VERSION,
)
from control_plane.objects.objects import Versioned

NAME = f"^{MODEL_NAME.pattern}$"
NAME_OR_NONE = f"^({MODEL_NAME.pattern})?$"
SCOPE = f"^(infer:{NAME_GLOB.pattern}|{'|'.join(right for right in Right if right is not Right.INFER)})$"

_MIN_RATE = 1e-6
_MOST = 1e9
"""Largest value of any limit: more than can be reached, and far below where arithmetic loses precision."""
_MAX_TIME_S = 253_402_300_799.0
"""The last second of the year 9999."""
_MAX_LIFETIME_S = 100 * 366 * 86_400.0

_NameText = Annotated[str, Field(pattern=NAME)]
_ScopeText = Annotated[str, Field(pattern=SCOPE)]
_Limit = Annotated[float, Field(allow_inf_nan=False, ge=0, le=_MOST)]
Whole = BeforeValidator(lambda given: int(given) if isinstance(given, float) and given.is_integer() else given)
"""Accepts 2.0 as an integer, as JSON and JSON Schema do. It must come after the bounds, or the document would
lose them."""
_Count = Annotated[int, Field(ge=1, le=int(_MOST)), Whole]


class Spec(Described):
    """Base of requests' and answers' objects: unknown fields and other types are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


ObjectT = TypeVar("ObjectT", Tenant, Route, Price)


class ObjectView(Spec, Generic[ObjectT]):
    """Base of stored objects, with the version that a change must name."""

    name: str
    resource_version: int
    """Version of the last change: the ETag without its quotes."""

    @classmethod
    def of(cls, held: Versioned[ObjectT]) -> Self:
        """Make the view without validation: another version's object may exceed today's bounds."""
        body: dict[str, Any] = to_body(held.value)
        return cls.model_construct(resource_version=held.resource_version, **body)


class TenantSpec(Spec):
    """Limits of a tenant; null means no limit."""

    requests_per_s: Annotated[_Limit, Field(ge=_MIN_RATE)] | None = None
    burst: _Count | None = None
    """Requests that may arrive at once (size of the token bucket); null: one second's worth, at least 1."""
    concurrency: _Count | None = None
    """Requests that may be in flight."""
    daily_compute_units: Annotated[float, Field(allow_inf_nan=False, ge=0, le=1e15)] | None = None
    """Compute units per day (UTC). One unit is a millisecond of one instance at batch 1."""
    weight: Annotated[float, Field(allow_inf_nan=False, ge=1e-3, le=1e6)] = 1.0
    """Share of a model that cannot serve everybody, relative to the other tenants' weights."""
    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY), Whole] = 0
    """A model that cannot serve everybody serves higher priorities first; weights count among equal
    priorities."""
    regions: Literal["any", "local"] = "any"
    """Where its requests may be computed: `any`; or `local`, only in the region that they came to, even where that refuses
    them."""

    def named(self, name: str) -> Tenant:
        return Tenant(name=name, **self.model_dump())

    def patched(self, tenant: Tenant) -> Tenant:
        """Return the tenant with the given fields changed."""
        return replace(tenant, **self.model_dump(exclude_unset=True))


class TenantView(TenantSpec, ObjectView[Tenant]):
    """A tenant: an account with limits, to which usage is charged."""


class CacheSpec(Spec):
    """Caching policy of a route: whether and how responses are cached."""

    is_on: bool | None = None
    """Whether responses are cached; null: as the model's configuration says (`response_cache { enable: true
    }`)."""
    ttl_s: Annotated[_Limit, Field(ge=1e-3)] | None = None
    """Most seconds that a response is cached; null: the gateway's setting (`cache_ttl_s`)."""
    is_private: bool = False
    """Whether each tenant has cache entries of its own, which others never see."""
    min_cost_units: _Limit = 0.0
    """Compute units; responses that cost less are not cached."""


class HedgingSpec(Spec):
    """Which requests go to two servers of a fleet, of which the first to answer is taken. Only requests of models whose
    responses are cached or that declare `tidegate_repeatable`."""

    is_on: bool | None = None
    """Whether a request that is late goes to a second server; null: the gateway's setting (`hedging`)."""
    twice_from_s: Annotated[_Limit, Field(ge=1e-3)] | None = None
    """Expected seconds at one server from which requests go to two from the start; null: never."""


class TargetSpec(Spec):
    """A model that gets a part of a route's requests."""

    model: _NameText
    weight: Annotated[int, Field(ge=0, le=WHOLE), Whole]
    """Requests of 10,000 that it gets; the route's own model gets what all targets leave."""
    version: str = Field("", pattern=f"^{VERSION.pattern}$")
    """Version of the model; empty: the model's version policy chooses."""


class FasterSpec(Spec):
    """A model that is faster and cheaper than a route's own and less accurate."""

    model: _NameText
    version: str = Field("", pattern=f"^{VERSION.pattern}$")
    """Version of the model; empty: the model's version policy chooses."""


class MirrorSpec(Spec):
    """A model that gets copies of a route's requests, whose answers nobody waits for. While a rollout of the route is under way
    nothing is copied to it."""

    model: _NameText
    """A model that none of the route's requests go to."""
    version: str = Field("", pattern=f"^{VERSION.pattern}$")
    """Version of the model; empty: the model's version policy chooses."""
    weight: Annotated[int, Field(ge=0, le=WHOLE), Whole] = 1_000
    """Requests of 10,000 that are copied, of those that the route's own model has answered: equal ones alike."""


class MirrorPatch(MirrorSpec):
    """A PATCH of a mirror: the fields to change."""

    model: _NameText = Field(default_factory=str)


class RouteSpec(Spec):
    """The model behind a public name, and how it is served under that name."""

    model: _NameText
    """The model; it need not exist yet, and must have another name than the route."""
    version: str = Field("", pattern=f"^{VERSION.pattern}$")
    """Version of the model; empty: the model's version policy chooses."""
    deadline_s: Annotated[_Limit, Field(ge=1e-3)] | None = None
    """Deadline in seconds of requests that name none; null: the gateway's setting."""
    tenants: list[_NameText] | None = Field(None, max_length=1000)
    """Tenants that may call it, if their scopes allow it too; null: all tenants."""
    cache: CacheSpec = CacheSpec()
    pool: str = Field("", pattern=f"^{POOL_OR_NONE.pattern}$")
    """In a fleet, pool of servers for its requests, if it has servers; empty: chosen by the kind of each
    request."""
    hedging: HedgingSpec = HedgingSpec()
    targets: list[TargetSpec] = Field(default_factory=list, max_length=MAX_TARGETS)
    """Other models that get a part of the requests."""
    sticky: str = Field("", pattern=f"^{STICKY.pattern}$")
    """What keeps a caller at one model: `tenant`, `key`, `sequence` or `header:NAME`; empty: each request's contents, so that
    equal requests go to the same model."""
    salt: str = Field("", max_length=MAX_SALT_CHARS)
    """Text that is hashed with what sticks: another one draws anew who goes where; empty: the route's name."""
    is_repeatable: bool = False
    """Whether requests may be computed twice, also where responses are not cached: then the route's own model stands in for a
    target that fails."""
    faster: list[FasterSpec] = Field(default_factory=list, max_length=MAX_TARGETS)
    """Models that answer where the route's own would exceed a request's budget of latency or of cost, the most accurate first."""
    latency_budget_s: Annotated[_Limit, Field(ge=1e-3)] | None = None
    """Latency budget in seconds of requests that name none (`tidegate-latency-budget-ms`); null: none."""
    cost_budget_units: Annotated[_Limit, Field(ge=1e-3)] | None = None
    """Cost budget in compute units of requests that name none (`tidegate-cost-budget-units`); null: none."""
    mirror: MirrorSpec | None = None
    """Model that gets copies of requests; null: none."""

    def named(self, name: str) -> Route:
        tenants = None if self.tenants is None else tuple(self.tenants)
        cache = CachePolicy(**self.cache.model_dump())
        return Route(
            name,
            self.model,
            version=self.version,
            deadline_s=self.deadline_s,
            tenants=tenants,
            cache=cache,
            pool=self.pool,
            hedging=HedgingPolicy(**self.hedging.model_dump()),
            targets=_targets(self.targets),
            sticky=self.sticky,
            salt=self.salt,
            is_repeatable=self.is_repeatable,
            faster=_faster(self.faster),
            latency_budget_s=self.latency_budget_s,
            cost_budget_units=self.cost_budget_units,
            mirror=None if self.mirror is None else Mirror(**self.mirror.model_dump()),
        )


def _targets(specs: list[TargetSpec]) -> tuple[Target, ...]:
    return tuple(Target(**spec.model_dump()) for spec in specs)


def _faster(specs: list[FasterSpec]) -> tuple[FasterModel, ...]:
    return tuple(FasterModel(**spec.model_dump()) for spec in specs)


class RoutePatch(RouteSpec):
    """A PATCH of a route: the fields to change."""

    model: _NameText = Field(default_factory=str)
    mirror: MirrorPatch | None = None
    """Model that gets copies of requests; null: none."""

    def patched(self, route: Route) -> Route:
        """Return the route with the given fields changed, also single fields of its cache, hedging and mirror."""
        changes = self.model_dump(exclude_unset=True)
        if changes.get("tenants") is not None:
            changes["tenants"] = tuple(changes["tenants"])
        if "cache" in changes:
            changes["cache"] = replace(route.cache, **changes["cache"])
        if "hedging" in changes:
            changes["hedging"] = replace(route.hedging, **changes["hedging"])
        if "targets" in changes:
            changes["targets"] = _targets(self.targets)
        if "faster" in changes:
            changes["faster"] = _faster(self.faster)
        if changes.get("mirror") is not None:
            changes["mirror"] = replace(route.mirror or Mirror(""), **changes["mirror"])
        return replace(route, **changes)


class RouteView(RouteSpec, ObjectView[Route]):
    """A route: a public name that callers use. It takes precedence over a model of the same name."""

    @classmethod
    def of(cls, held: Versioned[Route]) -> Self:
        view = super().of(held)
        view.cache = CacheSpec.model_construct(**asdict(held.value.cache))
        view.hedging = HedgingSpec.model_construct(**asdict(held.value.hedging))
        view.targets = [TargetSpec.model_construct(**asdict(target)) for target in held.value.targets]
        view.faster = [FasterSpec.model_construct(**asdict(each)) for each in held.value.faster]
        view.mirror = None if held.value.mirror is None else MirrorSpec.model_construct(**asdict(held.value.mirror))
        return view


class RouteWritten(RouteView):
    """A route that was just written."""

    warnings: list[str] = Field(default_factory=list)
    """Sentences on what it names that there is not, such as a model that comes later."""


class PriceSpec(Spec):
    """Price of a compute unit, and of tokens, from a time on, until a later price for the same models and tenant."""

    from_s: float = Field(allow_inf_nan=False, ge=0, le=_MAX_TIME_S)
    """Start in seconds since 1970; a day (UTC) is charged at the price in force at its start."""
    per_unit: _Limit
    currency: str = Field(pattern=f"^{CURRENCY.pattern}$")
    """Currency, as three letters (ISO 4217)."""
    models: str = Field("*", pattern=f"^{NAME_GLOB.pattern}$")
    """Glob of the models that it holds for."""
    tenant: str = Field("", pattern=NAME_OR_NONE)
    """Tenant that it holds for; empty: all tenants without a price of their own."""
    per_input_token: _Limit = 0.0
    """Price of a token that a generative model reads, beside its compute units."""
    per_output_token: _Limit = 0.0
    """Price of a token that it generates."""

    def named(self, name: str) -> Price:
        return Price(name=name, **self.model_dump())


class PricePatch(PriceSpec):
    """A PATCH of a price: the fields to change."""

    from_s: float = Field(default_factory=float, allow_inf_nan=False, ge=0, le=_MAX_TIME_S)
    per_unit: _Limit = Field(default_factory=float)
    currency: str = Field(default_factory=str, pattern=f"^{CURRENCY.pattern}$")

    def patched(self, price: Price) -> Price:
        """Return the price with the given fields changed."""
        return replace(price, **self.model_dump(exclude_unset=True))


class PriceView(PriceSpec, ObjectView[Price]):
    """A price of compute units and tokens."""


class KeySpec(Spec):
    """Tenant, scopes and lifetime of a new key."""

    tenant: _NameText
    """Tenant that requests with the key are counted for; it must exist."""
    scopes: list[_ScopeText] = Field(min_length=1, max_length=100)
    """Permissions: `infer:GLOB` (names of models and routes), `repository`, `metrics`, `viewer`, `operator`, `admin`."""
    lifetime_s: Annotated[float, Field(allow_inf_nan=False, ge=1, le=_MAX_LIFETIME_S)] | None = None
    """Seconds from now until it expires; null: never."""
    description: str = Field("", max_length=MAX_DESCRIPTION_CHARS)

    def parsed_scopes(self) -> list[Scope]:
        return [parse_scope(text) for text in self.scopes]


class RotationSpec(Spec):
    """Options of a key rotation."""

    overlap_s: Annotated[float, Field(allow_inf_nan=False, ge=0, le=_MAX_LIFETIME_S)] = 86_400.0
    """Seconds for which the old key stays valid beside the new one."""


class KeyView(Spec):
    """An API key without its secret; times are in seconds since 1970."""

    id: str
    tenant: str
    scopes: list[str]
    created_s: float
    expires_s: float | None
    revoked_s: float | None
    """When it was revoked, or will be: a rotated key stays valid for the overlap."""
    description: str

    @classmethod
    def of(cls, key: ApiKey, **more: str) -> Self:
        fields = to_body(key)
        del fields["secret_sha256"], fields["is_revoked"]  # callers see the latter by `revoked_s`
        return cls.model_validate(fields | more)


class NewKeyView(KeyView):
    """A new API key with its secret."""

    text: str
    """The key as callers send it. It is shown here and never again."""
