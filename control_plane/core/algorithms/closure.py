"""Transitive closure of "needs": a model with all models that it calls, directly or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def closure(name: str, steps_of: Callable[[str], Iterable[str]]) -> list[str]:
    """Return `name` and all that it needs by `steps_of`, each once; a cycle ends where it began."""
    found = {name: None}
    left = [name]
    while left:
        new = [step for step in dict.fromkeys(steps_of(left.pop())) if step not in found]
        found.update(dict.fromkeys(new))
        left += new
    return list(found)
