"""Events of background builds of models' artefacts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class BuildEventKind(Enum):
    """Kind of a build event, by the words of the build program."""

    BEGUN = "begun"
    STEP = "step"
    BUILT = "built"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class BuildEvent:
    """Event of a build; a STEP belongs to the target that was BEGUN last."""

    kind: BuildEventKind
    model: str = ""
    """Model that is built; empty for a step, and for a failure of the whole build."""
    variant: str = ""
    """Variant that is built; empty if the model has only one form."""
    text: str = ""
    """Why the target was begun, was skipped or has failed; for a step what it does."""
    is_auto_eligible: bool = False
    """For a variant that was built: whether it may be served where no variant was asked for by name."""

    @property
    def label(self) -> str:
        """Name of the target for people: `model/variant`."""
        return f"{self.model}/{self.variant}".rstrip("/")
