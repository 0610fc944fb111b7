"""Transitive closure of "needs": a model with all models that it calls, directly or not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

MAX_MODELS = 100
"""Most models of an ensemble, itself and all that it needs. In a repository of ensembles that need each other in a chain the
work and memory for all of them grows with its length times this, not with its square."""


def closure(name: str, steps_of: Callable[[str], Iterable[str]], *, most: int = sys.maxsize) -> list[str]:
    """Return `name` and all that it needs by `steps_of`, each once; a cycle ends where it began, the search once it has found
    `most`.
    """
    found = {name: None}
    left = [name]
    while left and len(found) < most:
        new = [step for step in dict.fromkeys(steps_of(left.pop())) if step not in found]
        found.update(dict.fromkeys(new))
        left += new
    return list(found)
