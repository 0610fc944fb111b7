"""Search policy of `tidegate tune`: which configurations are measured, and which is recommended; pure.

The search is coordinate descent from the default: it sets one knob after the other to its best value, and
repeats until nothing changes; the full product of all values would take hours. It follows one short
measurement per candidate, which noise may mislead. So a candidate counts only after it has beaten the default
in final rounds, measured in turns (`decide`).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from control_plane.core.text.cpus import is_range
from control_plane.tuning.domain.candidates import DEFAULT, SERVE_FLAGS, Candidate, Knob, KnobValue, Level, Round

FINALISTS = 2
"""Finalists besides the default. Each has a server that stays up through the final rounds."""

FINAL_ROUNDS = 5
"""Rounds of the finalists: with fewer their spread says nothing about noise."""

MAX_PASSES = 3
"""Passes over all knobs; a third hardly ever finds anything."""

_DELAYS_US = (0, 100, 500, 2000)
_MAX_DELAY_SHARE = 0.25
"""Largest queue delay as a share of the p99 limit: a longer wait for a batch leaves too little time for the
work itself."""

_START_S = 3.0
"""Estimated start of a Triton with its model on a small machine; used only to choose how long to measure."""

_MIN_RUN_S, _MAX_RUN_S = 0.8, 6.0
_MIN_FINAL_SHARE = 0.5
"""Shortest final round, relative to a round of the search. On a slow machine shorter final rounds, of which
there are five, leave time for more candidates."""

_MARGIN = 0.2
"""Share of the time kept in reserve, since some candidates are slower to measure than others."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One dimension of the search: a knob and the values to try besides the present one."""

    knob: Knob
    alternatives: tuple[KnobValue, ...]


def make_axes(present: Mapping[Knob, int], *, cpus: Sequence[int], on_cpu: bool, limit_ms: float) -> tuple[Axis, ...]:
    """Return the axes to search on this machine, for a model whose configuration has the knobs `present` at
    these values.

    A knob that the configuration lacks is not tried; pinning to CPUs can always be tried.
    """
    few = _few_up_to(len(cpus)) if on_cpu else (1, 2, 4)
    longest_us = limit_ms * 1000 * _MAX_DELAY_SHARE
    candidates: dict[Knob, tuple[KnobValue, ...]] = {
        Knob.INSTANCES: few,
        Knob.THREADS: few if on_cpu else (),
        Knob.LANES: few,
        Knob.QUEUE_DELAY: tuple(delay for delay in _DELAYS_US if delay <= longest_us),
    }
    axes = [
        Axis(knob, tuple(value for value in values if value != present[knob])) for knob, values in candidates.items() if knob in present
    ]
    rest = _range_without_first(cpus)
    axes += [Axis(knob, (rest,)) for knob in SERVE_FLAGS if rest and (on_cpu or knob is Knob.TRITON_CPUS)]
    return tuple(axis for axis in axes if axis.alternatives)


def _few_up_to(cpus: int) -> tuple[int, ...]:
    return tuple(sorted({1, min(2, cpus), max(1, cpus // 2), cpus}))


def _range_without_first(cpus: Sequence[int]) -> str:
    """Return all CPUs but the first, which is left to the gateway; empty unless they are a range, as Triton
    demands.
    """
    rest = cpus[1:]
    return "" if not rest or not is_range(rest) else str(rest[0]) if len(rest) == 1 else f"{rest[0]}-{rest[-1]}"


@dataclass(frozen=True, slots=True)
class Score:
    """Score of a round: its level with the highest throughput within the limit, else the level with the
    lowest p99.
    """

    meets_limit: bool
    level: Level
    lowest_p99_ms: float

    @property
    def rank(self) -> tuple[bool, float]:
        """Sort key; higher is better, and a score within the limit is always better than one beyond it."""
        return self.meets_limit, self.level.throughput if self.meets_limit else -self.level.p99_ms


def score(levels: Round, *, limit_ms: float) -> Score:
    """Score a round; `levels` must not be empty."""
    fitting = [level for level in levels if level.p99_ms <= limit_ms]
    quickest = min(levels, key=lambda level: level.p99_ms)
    chosen = max(fitting, key=lambda level: level.throughput) if fitting else quickest
    return Score(bool(fitting), chosen, quickest.p99_ms)


def _rank(levels: Round, limit_ms: float) -> tuple[bool, float]:
    return score(levels, limit_ms=limit_ms).rank if levels else (False, float("-inf"))


def next_candidate(axes: Sequence[Axis], screened: Mapping[Candidate, Round], *, limit_ms: float) -> Candidate | None:
    """Return the candidate to measure next, given all measurements so far; None when the search has ended.

    The search is replayed from its start at each call, so it has no state and can resume anywhere.
    """
    if DEFAULT not in screened:
        return DEFAULT
    best = DEFAULT
    for _ in range(MAX_PASSES):
        before = best
        for axis in axes:
            options = [best.changed(axis.knob, value) for value in (None, *axis.alternatives)]
            for option in options:
                if option not in screened:
                    return option
            best = max(options, key=lambda option: _rank(screened[option], limit_ms))
        if best == before:
            break
    return None


def expected_candidates(axes: Sequence[Axis]) -> int:
    """Return the number of candidates in one pass over all knobs, for a progress bar."""
    return 1 + sum(len(axis.alternatives) for axis in axes)


def choose_finalists(screened: Mapping[Candidate, Round], *, limit_ms: float) -> tuple[Candidate, ...]:
    """Return the default, then at most `FINALISTS` of the best other candidates; of equal ones the simpler
    first.
    """
    others = [candidate for candidate, levels in screened.items() if levels and candidate != DEFAULT]
    # Two stable sorts: the first decides among candidates of equal rank.
    others.sort(key=lambda candidate: len(candidate.changes))
    others.sort(key=lambda candidate: _rank(screened[candidate], limit_ms), reverse=True)
    return (DEFAULT, *others[:FINALISTS])


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The recommended candidate, with the reason in a sentence or two."""

    candidate: Candidate
    reason: str


def medians(rounds: Sequence[Round]) -> Round:
    """Return the median of each figure over the rounds, level by level."""
    return tuple(
        Level(
            concurrency=levels[0].concurrency,
            throughput=statistics.median(level.throughput for level in levels),
            p50_ms=statistics.median(level.p50_ms for level in levels),
            p99_ms=statistics.median(level.p99_ms for level in levels),
        )
        for levels in zip(*rounds, strict=True)
    )


def decide(rounds: Mapping[Candidate, Sequence[Round]], *, limit_ms: float) -> Recommendation:
    """Decide by the final rounds; all candidates, the default among them, have equally many.

    A candidate wins if it beats the default's median by more than the default's own rounds spread (highest
    less lowest): in requests per second if the default meets the limit, else in p99. Of the winners take the
    best, or the simplest of those that the best does not beat by more than its own spread.
    """
    own = rounds[DEFAULT]
    if len(own) < FINAL_ROUNDS:
        return Recommendation(
            DEFAULT, f"There was time for only {len(own)} of {FINAL_ROUNDS} final rounds, too few for a verdict; raise --budget-s."
        )
    scores = {candidate: score(medians(each), limit_ms=limit_ms) for candidate, each in rounds.items()}
    default, spread = scores[DEFAULT], _spread(own, scores[DEFAULT], limit_ms)
    noise = f"{spread:.0f} requests/s" if default.meets_limit else f"{spread:.1f} ms of p99"
    missed = "" if any(each.meets_limit for each in scores.values()) else _missed(limit_ms)
    winners = [candidate for candidate, each in scores.items() if candidate != DEFAULT and _gain(each, default) > spread]
    if not winners:
        reason = f"Nothing beats the default, {_figures(default)}, by more than the default's own rounds differ: {noise}."
        return Recommendation(DEFAULT, missed + reason)
    chosen = _simplest_of_the_best(winners, scores, rounds, limit_ms=limit_ms)
    reason = f"{_figures(scores[chosen])}; the default: {_figures(default)}, and its own rounds differ by {noise}."
    return Recommendation(chosen, missed + reason)


def _simplest_of_the_best(
    winners: Sequence[Candidate], scores: Mapping[Candidate, Score], rounds: Mapping[Candidate, Sequence[Round]], *, limit_ms: float
) -> Candidate:
    best = max(winners, key=lambda each: scores[each].rank)
    spread = _spread(rounds[best], scores[best], limit_ms)
    as_good = [
        each for each in winners if scores[each].meets_limit == scores[best].meets_limit and _gain(scores[best], scores[each]) <= spread
    ]
    return min(as_good, key=lambda each: (len(each.changes), _gain(scores[best], scores[each])))


def _spread(rounds: Sequence[Round], median: Score, limit_ms: float) -> float:
    """Return how far the rounds spread, each scored by itself, in the figure that `_gain` compares.

    Rounds may have different best levels: a p99 that is sometimes within the limit and sometimes not is noise
    as well.
    """
    scores = [score(levels, limit_ms=limit_ms) for levels in rounds]
    if median.meets_limit:
        values = [each.level.throughput for each in scores if each.meets_limit]
    else:
        values = [each.lowest_p99_ms for each in scores]
    return max(values) - min(values)


def _gain(one: Score, other: Score) -> float:
    """Return by how much `one` beats `other`: in requests/s if the other meets the limit, else in ms of the
    lowest p99.
    """
    if not other.meets_limit:
        return other.lowest_p99_ms - one.lowest_p99_ms
    return one.level.throughput - other.level.throughput if one.meets_limit else float("-inf")


def _missed(limit_ms: float) -> str:
    return f"This machine does not meet a p99 of {limit_ms:g} ms with these requests, whatever was tried; the lowest p99 counts. "


def _figures(score: Score) -> str:
    level = score.level
    return f"{level.throughput:.0f} requests/s at a p99 of {level.p99_ms:.1f} ms with {level.concurrency} in flight"


@dataclass(frozen=True, slots=True)
class Costs:
    """Average cost of measuring so far, in seconds."""

    start_s: float
    """Time to start a candidate's server, warm it up, and stop it."""
    round_s: float
    """Time of one round of the search: all its levels once."""
    run_s: float
    """Requested length of each measurement in such a round."""


def search_run_s(axes: Sequence[Axis], *, levels: int, budget_s: float) -> float:
    """Return the length of a measurement with which one pass over all knobs and the final rounds fit into the
    budget.
    """
    servers = expected_candidates(axes) + 1 + FINALISTS
    runs = levels * (expected_candidates(axes) + (1 + FINALISTS) * FINAL_ROUNDS)
    return _bounded((budget_s * (1 - _MARGIN) - servers * _START_S) / runs)


def may_screen(costs: Costs, *, screened: int, elapsed_s: float, budget_s: float) -> bool:
    """Whether there is time to measure one more candidate and still run final rounds, if short ones."""
    shortest = costs.round_s * max(_MIN_FINAL_SHARE, _MIN_RUN_S / costs.run_s)
    finals_s = (1 + min(FINALISTS, screened)) * (costs.start_s + FINAL_ROUNDS * shortest)
    return elapsed_s + costs.start_s + costs.round_s + finals_s * (1 + _MARGIN) <= budget_s


def final_run_s(costs: Costs, *, finalists: int, left_s: float) -> float:
    """Return the length of a measurement of the final rounds: that of the search, scaled to the time that is
    left.
    """
    rounds_s = left_s * (1 - _MARGIN) - finalists * costs.start_s
    return _bounded(costs.run_s * rounds_s / (finalists * FINAL_ROUNDS * costs.round_s))


def _bounded(run_s: float) -> float:
    return min(max(run_s, _MIN_RUN_S), _MAX_RUN_S)
