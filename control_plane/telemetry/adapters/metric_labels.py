"""Bounds on the cardinality and length of metrics' labels.

Labels are names of existing models and tenants (`inference/model_names`), so callers cannot make them up;
this is a second line of defence, and the bound for those who have more models than a metrics page should
show.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import replace

from control_plane.core.model import UNKNOWN_MODEL
from control_plane.telemetry.request_counts import OTHER, RequestCounts, total

COLLECTIVE = frozenset((OTHER, UNKNOWN_MODEL))
"""Label values that stand for many names; they do not count towards the bound."""

MAX_CHARS = 255


class LabelLimit:
    """Bounded set of the values of one label: first come, first served, until a value no longer occurs."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._shown: dict[str, None] = {}

    def shown(self, values: Iterable[str]) -> Set[str]:
        """Return those of `values` that are shown; `OTHER` stands for the rest.

        A value that was shown stays as long as it occurs: a series that moved to `OTHER` and back would break
        rates.
        """
        present = dict.fromkeys(value for value in sorted(values) if len(value) <= MAX_CHARS and value not in COLLECTIVE)
        stay = [value for value in self._shown if value in present]
        self._shown = dict.fromkeys([*stay, *(value for value in present if value not in self._shown)][: self._most])
        return self._shown.keys() | COLLECTIVE


class BoundedCounts:
    """Bound on the models, and on the tenants, that request counts tell apart."""

    def __init__(self, most: int) -> None:
        self._models, self._tenants = LabelLimit(most), LabelLimit(most)

    def of(self, counts: RequestCounts) -> RequestCounts:
        """Return the counts with all models and tenants beyond the bound summed as `OTHER`."""
        models = {each.model for each in counts.ended} | {each.model for each in counts.took} | {each.model for each in counts.cached}
        models |= {each.model for each in counts.work}
        tenants = {each.tenant for each in counts.shed} | {each.tenant for each in counts.units}
        hidden_models, hidden_tenants = models - self._models.shown(models), tenants - self._tenants.shown(tenants)
        if not hidden_models and not hidden_tenants:
            return counts
        bounded = replace(
            counts,
            ended=tuple(replace(each, model=OTHER) if each.model in hidden_models else each for each in counts.ended),
            took=tuple(replace(each, model=OTHER) if each.model in hidden_models else each for each in counts.took),
            cached=tuple(replace(each, model=OTHER) if each.model in hidden_models else each for each in counts.cached),
            work=tuple(replace(each, model=OTHER) if each.model in hidden_models else each for each in counts.work),
            shed=tuple(replace(each, tenant=OTHER) if each.tenant in hidden_tenants else each for each in counts.shed),
            units=tuple(replace(each, tenant=OTHER) if each.tenant in hidden_tenants else each for each in counts.units),
        )
        return total([bounded])
