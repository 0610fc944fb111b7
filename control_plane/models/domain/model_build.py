"""Builds of models' artefacts by their recipes, as a gateway that has them built in the background hears of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class BuildEventKind(Enum):
    """What has happened; the recipes' program says it in these words."""

    BEGUN = "begun"
    STEP = "step"
    BUILT = "built"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class BuildEvent:
    """One of a build's; a step is one of what was begun last."""

    kind: BuildEventKind
    model: str = ""
    """Empty of a step, and of a failure of the whole."""
    variant: str = ""
    """Empty of a model that has only one form."""
    text: str = ""
    """Why it has begun, been skipped or failed; what is done in a step."""
    may_be_chosen: bool = False
    """Of one that is built: whether it may be served where nobody has named a variant."""

    @property
    def label(self) -> str:
        """As people know what is built."""
        return f"{self.model}/{self.variant}".rstrip("/")
