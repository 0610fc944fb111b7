"""Purges of the response cache: a response that was computed before a purge is never found again."""

from __future__ import annotations

from dataclasses import dataclass

EVERY_MODEL = "*"


@dataclass(frozen=True, slots=True)
class Purge:
    """Last purge of a model's cached responses."""

    model: str
    """Model's name; EVERY_MODEL for all models, also those added later."""
    generation: str
    """Part of the model's cache keys from then on: 32 hexadecimal digits that no other purge has."""
