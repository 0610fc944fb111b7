"""Who may have answered a request: by what was in force when it was sent, and a moment before and after. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from control_plane.inference.domain.assignment import unit_digest
from control_plane.objects.domain.route import WHOLE
from perf.rollouts.callers import Answered

KNOWN_AFTER_S = 1.0
"""Time within which a change of weight holds on all processes."""
_CLOCK_S = 0.1


@dataclass(frozen=True, slots=True)
class Period:
    """A time with one assignment of a route's requests."""

    from_s: float
    to_s: float
    rollout: str
    stable: str
    candidate: str
    weight: int
    """Requests of 10,000 that the candidate gets."""

    def model_of(self, unit: str) -> str:
        """Who gets the requests of this user."""
        place = unit_digest(self.rollout, b"sticky", unit.encode()) % WHOLE
        return self.candidate if place < self.weight else self.stable


def misassigned(answered: Iterable[Answered], periods: Sequence[Period], *, may_stand_in: bool) -> Iterator[Answered]:
    """The requests of users that were answered by a model that they were not assigned to; where a candidate may fail, the
    stable model may have stood in for it."""
    for each in answered:
        if not each.model:
            continue
        then = _in_force(each, periods)
        allowed = {period.model_of(each.unit) for period in then}
        if may_stand_in:
            allowed |= {period.stable for period in then}
        if each.model not in allowed:
            yield each


def torn(answered: Iterable[Answered], periods: Sequence[Period]) -> dict[str, str]:
    """Sequences of several models, and streams of several though what is in force did not change meanwhile; each with the
    models that answered it and what was in force."""
    by_unit: dict[str, list[Answered]] = defaultdict(list)
    for each in answered:
        if each.model:
            by_unit[each.unit].append(each)
    found = {}
    for unit, of_one in by_unit.items():
        models = {each.model for each in of_one}
        whole = Answered(of_one[0].route, "", unit, of_one[0].sent_s, of_one[-1].answered_s)
        then = _in_force(whole, periods)
        arms = {(period.stable, period.candidate if period.weight else period.stable) for period in then}
        if len(models) > 1 and (of_one[0].way == "sequence" or len(arms) == 1):
            found[unit] = f"{[(round(each.sent_s, 3), each.model) for each in of_one]}, in force: {then}"
    return found


def _in_force(each: Answered, periods: Sequence[Period]) -> list[Period]:
    from_s, to_s = each.sent_s - KNOWN_AFTER_S, each.answered_s + _CLOCK_S
    return [period for period in periods if period.from_s <= to_s and period.to_s >= from_s]
