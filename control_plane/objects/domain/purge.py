"""Answers that are kept no longer: what was computed before a purge is never found again."""

from __future__ import annotations

from dataclasses import dataclass

EVERY_MODEL = "*"


@dataclass(frozen=True, slots=True)
class Purge:
    """The last one of a model."""

    model: str
    """EVERY_MODEL: of all, also of those to come."""
    generation: str
    """Part of the key of every answer that is kept from then on: 32 hexadecimal digits that no other purge has."""
