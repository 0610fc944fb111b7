"""Routes: names that callers use for models, with policies for the requests that come by them."""

from __future__ import annotations

from dataclasses import dataclass


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
class Route:
    """Alias of a model. Routes and models share one namespace, in which a route hides the model of
    its name.
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
