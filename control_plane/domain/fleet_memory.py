"""What is remembered of a fleet's models when processes end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measured:
    """What loads have shown, and whether the model may be tried again."""

    file_bytes: int
    """Of its files when it was measured: with another number it is another model."""
    resident_bytes: int | None = None
    """None: its owner declares them, or it has never been loaded."""
    load_s: float | None = None
    """From the warm tier."""
    failures: int = 0
    """Loads in a row that failed."""
    quarantined_until_s: float = 0.0
    """Since 1970."""
    why: str = ""
    """The last one failed."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What administrators have said of a model while the fleet runs."""

    min_copies: int | None = None
    """None: as its folder says."""
    is_withdrawn: bool = False
    """It is loaded for nobody."""
