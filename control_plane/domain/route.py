"""Routes: names that callers use, and the models behind them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """Whether and how answers are kept."""

    is_on: bool = False
    ttl_s: float | None = None
    is_private: bool = False
    """Whether tenants never see each other's entries."""


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
