"""Routes: names that callers use, and the models behind them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """Whether and how answers are kept, so that equal requests are computed once."""

    is_on: bool | None = None
    """None: as the model's own configuration says (`response_cache { enable: true }`)."""
    ttl_s: float | None = None
    """None: as long as the server keeps answers (`cache_ttl_s`)."""
    is_private: bool = False
    """Whether tenants never see each other's entries."""
    min_cost_units: float = 0.0
    """In compute units: what costs less is not worth its room."""


@dataclass(frozen=True, slots=True)
class Route:
    """What callers name. Routes and models share one namespace, in which a route wins."""

    name: str
    model: str
    version: str = ""
    """Empty: the one that the model's version policy chooses."""
    deadline_s: float | None = None
    """Of requests that name none."""
    tenants: tuple[str, ...] | None = None
    """Who may call it, beside what their scopes say; None is everybody."""
    cache: CachePolicy = CachePolicy()
    pool: str = ""
    """Of servers, to which its requests go where there are such; empty: each by what kind of request it is."""
