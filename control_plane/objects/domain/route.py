"""Routes: names that callers use for models, with policies for the requests that come by them."""

from __future__ import annotations

from dataclasses import dataclass

WHOLE = 10_000
"""Weights count requests in so many."""


def arm_name(model: str, version: str) -> str:
    """Return how a model, or one version of it, is named: `model`, `model@version`."""
    return f"{model}@{version}" if version else model


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """Policy of the response cache for requests that come by a route."""

    is_on: bool | None = None
    """Whether responses are cached; None follows the model's own configuration (`response_cache { enable:
    true }`).
    """
    ttl_s: float | None = None
    """Lifetime of entries; None follows the setting `cache_ttl_s`."""
    is_private: bool = False
    """Whether each tenant has entries of its own and never sees another's."""
    min_cost_units: float = 0.0
    """Least cost of a response that is cached, in compute units."""


@dataclass(frozen=True, slots=True)
class HedgingPolicy:
    """Policy for sending requests that come by a route to two servers of a fleet."""

    is_on: bool | None = None
    """Whether requests that are late are hedged; None follows the setting `hedging`."""
    twice_from_s: float | None = None
    """Expected time at one server from which requests go to two from the start (dual execution); None for
    never."""


@dataclass(frozen=True, slots=True)
class Target:
    """Model that gets a part of a route's requests."""

    model: str
    weight: int
    """Requests of 10,000 that it gets."""
    version: str = ""
    """Version of the model; empty for the one that the model's version policy chooses."""


@dataclass(frozen=True, slots=True)
class FasterModel:
    """Model that is faster and cheaper than a route's own and less accurate: it answers where the own one would exceed a
    request's budget of latency or of cost."""

    model: str
    version: str = ""
    """Version of the model; empty for the one that the model's version policy chooses."""


@dataclass(frozen=True, slots=True)
class Mirror:
    """Model that gets copies of a part of a route's requests, whose answers nobody waits for."""

    model: str
    version: str = ""
    """Version of the model; empty for the one that the model's version policy chooses."""
    weight: int = 1_000
    """Requests of 10,000 that are copied."""

    def may_be(self, arm: tuple[str, str]) -> bool:
        """Whether this is the same model and version, as far as one knows: of a model without a number any."""
        model, version = arm
        return model == self.model and (version == self.version or not (version and self.version))


@dataclass(frozen=True, slots=True)
class Route:
    """Alias of a model, or a weighted split of its requests over several. Routes and models share one
    namespace, in which a route hides the model of its name.
    """

    name: str
    model: str
    version: str = ""
    """Version of the model; empty for the one that the model's version policy chooses."""
    deadline_s: float | None = None
    """Deadline of requests that set none."""
    tenants: tuple[str, ...] | None = None
    """Tenants that may call the route, if their scopes allow it as well; None for all tenants."""
    cache: CachePolicy = CachePolicy()
    pool: str = ""
    """Pool of servers that the requests prefer; empty to choose the pool by the kind of request."""
    hedging: HedgingPolicy = HedgingPolicy()
    targets: tuple[Target, ...] = ()
    """Other models that get a part of the requests; `model` gets the rest."""
    sticky: str = ""
    """What keeps a caller at one model: `tenant`, `key`, `sequence` or `header:NAME`; empty for each request's own
    contents, so that equal requests go to the same model."""
    salt: str = ""
    """Text that is hashed with what sticks; another one draws anew who goes where. Empty for the route's name."""
    is_repeatable: bool = False
    """Whether requests may be computed twice, also where responses are not cached: then a model that fails is
    stood in for by `model`."""
    faster: tuple[FasterModel, ...] = ()
    """Models that answer where `model` would exceed a request's budget of latency or of cost, the most accurate first."""
    latency_budget_s: float | None = None
    """Latency budget of requests that set none; None: none."""
    cost_budget_units: float | None = None
    """Cost budget, in compute units, of requests that set none; None: none. Requests without any budget go to `model`."""
    mirror: Mirror | None = None
    """Model that gets copies of requests which `model` has answered; None for none."""

    @property
    def models(self) -> tuple[str, ...]:
        """All models that requests may go to, `model` first; one of which several versions are targets comes several times."""
        return tuple(model for model, _ in self.arms)

    @property
    def arms(self) -> tuple[tuple[str, str], ...]:
        """Model and version of all that requests may go to, the route's own first."""
        targets = ((target.model, target.version) for target in self.targets)
        return ((self.model, self.version), *targets, *((each.model, each.version) for each in self.faster))

    def arm_named(self, name: str) -> tuple[str, str] | None:
        """Return the model and version of this name: `model@version`, or a model of which there is one only."""
        found = [arm for arm in self.arms if name in (arm[0], arm_name(*arm))]
        exact = [arm for arm in found if name == arm_name(*arm)]
        return (exact or found)[0] if exact or len(found) == 1 else None


def timeout_s_of(route: Route | None, *, asked_s: float | None, default_s: float) -> float:
    """The seconds that a request has: as many as it says, else as its route does, else the default."""
    if asked_s is not None:
        return asked_s
    return default_s if route is None or route.deadline_s is None else route.deadline_s
