"""Prices of models, as administrators set them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Price:
    """Price of a compute unit, and of tokens, from `from_s` on (seconds since 1970), until a later price for the
    same models and tenant.
    """

    name: str
    from_s: float
    per_unit: float
    currency: str
    models: str = "*"
    """Glob of the models that the price is for."""
    tenant: str = ""
    """Tenant that the price is for; empty for all tenants that have none of their own."""
    per_input_token: float = 0.0
    """Price of a token that a generative model reads, beside its compute units."""
    per_output_token: float = 0.0
    """Price of a token that it generates."""
