"""Prices of models, as people set them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Price:
    """What a compute unit costs from a moment on, until a later price for the same models and tenant."""

    name: str
    from_s: float
    per_unit: float
    currency: str
    models: str = "*"
    """A glob."""
    tenant: str = ""
    """Empty: for all who have no price of their own."""
