"""What is remembered of a fleet's models when processes end, and is the same for all that share it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measured:
    """What loads have shown, whether the model may be tried again, and what came of what the owner was asked."""

    file_bytes: int
    """Of its files when it was measured: with another number it is another model. 0: not known."""
    resident_bytes: int | None = None
    """None: its owner declares them, or it has never been loaded."""
    load_s: float | None = None
    """From the warm tier."""
    service_s: float | None = None
    """One request's, mean."""
    failures: int = 0
    """Loads in a row that failed."""
    quarantined_until_s: float = 0.0
    """Since 1970."""
    why: str = ""
    """The last one failed."""
    is_on_trial: bool = False
    """It has failed, and has never been loaded as it is: nothing is unloaded to try it again."""
    answered: str = ""
    """The last `Wish.asked` that has been carried out, or could not be."""
    refusal: str = ""
    """Why it could not; empty: it has been."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What administrators have said of a model while the fleet runs."""

    min_copies: int | None = None
    """None: as its folder says."""
    is_withdrawn: bool = False
    """It is loaded for nobody."""
    asked: str = ""
    """By who waits until the owner has carried it out (`Measured.answered`), loading anew what is loaded: never the same twice."""
