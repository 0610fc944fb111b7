"""Bounds on the labels of metrics: how many values one may have on the page, and how long one may be.

Values are names of what exists (`inference/known_models`), so this is a second line of defence, and a bound for whoever has more models
than a page should tell apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import replace

from control_plane.core.model import UNKNOWN_MODEL
from control_plane.telemetry.request_counts import RequestCounts, total

OTHER = "(other)"
"""Counts what has no label of its own; no model or tenant can be called that."""

COLLECTIVE = frozenset((OTHER, UNKNOWN_MODEL))
"""Values that stand for many; they take nobody's place."""

MAX_CHARS = 255


class LabelLimit:
    """Set of the values that one label shows, first come, first served; one that is gone from the page makes room."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._shown: dict[str, None] = {}

    def shown(self, values: Iterable[str]) -> Set[str]:
        """Those of `values` that are shown; `OTHER` stands for the rest."""
        present = dict.fromkeys(value for value in sorted(values) if len(value) <= MAX_CHARS and value not in COLLECTIVE)
        stay = [value for value in self._shown if value in present]
        self._shown = dict.fromkeys([*stay, *(value for value in present if value not in self._shown)][: self._most])
        return self._shown.keys() | COLLECTIVE


class BoundedCounts:
    """Request counts with at most so many models, and so many tenants."""

    def __init__(self, most: int) -> None:
        self._models, self._tenants = LabelLimit(most), LabelLimit(most)

    def of(self, counts: RequestCounts) -> RequestCounts:
        """The same counts, with those of all that are beyond the limit as one."""
        models = {each.model for each in counts.ended} | {each.model for each in counts.took} | {each.model for each in counts.cached}
        tenants = {each.tenant for each in counts.shed}
        hidden_models, hidden_tenants = models - self._models.shown(models), tenants - self._tenants.shown(tenants)
        if not hidden_models and not hidden_tenants:
            return counts
        bounded = replace(
            counts,
            ended=tuple(replace(each, model=OTHER) if each.model in hidden_models else each for each in counts.ended),
            took=tuple(replace(each, model=OTHER) if each.model in hidden_models else each for each in counts.took),
            cached=tuple(replace(each, model=OTHER) if each.model in hidden_models else each for each in counts.cached),
            shed=tuple(replace(each, tenant=OTHER) if each.tenant in hidden_tenants else each for each in counts.shed),
        )
        return total([bounded])
