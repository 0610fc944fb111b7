"""Which ways to serve a model are measured, and which is recommended: pure decisions of `tidegate tune`.

The search is coordinate descent around the default: one knob after the other, each at its best before the next, again
until nothing moves; the full product would take hours. One short measurement each decides where it goes, which noise may
mislead; what it finds counts only once it has beaten the default in rounds measured by turns (`decide`).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from control_plane.core.cpus import is_range
from control_plane.tuning.domain.candidates import DEFAULT, SERVE_FLAGS, Candidate, Knob, KnobValue, Level, Round

FINALISTS = 2
"""Besides the default. Each is a server that stays up through the final rounds."""

FINAL_ROUNDS = 5
"""Below that, the spread of a handful of runs says nothing."""

MAX_PASSES = 3
"""Over all knobs; the third hardly ever finds anything."""

_DELAYS_US = (0, 100, 500, 2000)
_MAX_DELAY_SHARE = 0.25
"""Of the p99 limit: a request that waits longer than that for company has little left for its own work."""

_START_S = 3.0
"""A Triton on a small machine, with its model; only for choosing how long to measure."""

_SHORTEST_RUN_S, _LONGEST_RUN_S = 0.8, 6.0
_SHORTEST_FINAL = 0.5
"""Of a round of the search: on a slow machine more candidates are worth shorter final rounds, of which there are five."""

_MARGIN = 0.2
"""Of the time: measuring is slower on one candidate than on another."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A knob and its values besides the present one."""

    knob: Knob
    alternatives: tuple[KnobValue, ...]


def make_axes(present: Mapping[Knob, int], *, cpus: Sequence[int], on_cpu: bool, limit_ms: float) -> tuple[Axis, ...]:
    """What to try on this machine for a model whose configuration has the knobs `present`, at these values.

    A knob that it does not have is not tried; where it has none at all, pinning is all that is left.
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
    """All but the first CPU, which is left to whoever receives requests; empty where they are no range, as Triton wants."""
    rest = cpus[1:]
    return "" if not rest or not is_range(rest) else str(rest[0]) if len(rest) == 1 else f"{rest[0]}-{rest[-1]}"


@dataclass(frozen=True, slots=True)
class Score:
    """What a round is worth: the level with most requests per second within the limit, else the one with the lowest p99."""

    meets_limit: bool
    level: Level
    lowest_p99_ms: float

    @property
    def rank(self) -> tuple[bool, float]:
        return self.meets_limit, self.level.throughput if self.meets_limit else -self.level.p99_ms


def score(levels: Round, *, limit_ms: float) -> Score:
    """`levels` must not be empty."""
    fitting = [level for level in levels if level.p99_ms <= limit_ms]
    quickest = min(levels, key=lambda level: level.p99_ms)
    chosen = max(fitting, key=lambda level: level.throughput) if fitting else quickest
    return Score(bool(fitting), chosen, quickest.p99_ms)


def _rank(levels: Round, limit_ms: float) -> tuple[bool, float]:
    return score(levels, limit_ms=limit_ms).rank if levels else (False, float("-inf"))


def next_candidate(axes: Sequence[Axis], screened: Mapping[Candidate, Round], *, limit_ms: float) -> Candidate | None:
    """What to measure next, given all that has been; None when the search is at its end.

    It follows its own steps anew each time, so it has no state, and one that was interrupted goes on where it was.
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
    """How many one pass over all knobs measures, for a progress bar."""
    return 1 + sum(len(axis.alternatives) for axis in axes)


def choose_finalists(screened: Mapping[Candidate, Round], *, limit_ms: float) -> tuple[Candidate, ...]:
    """The default, then the best others that could be served, best first, at most `FINALISTS`; equal ones: the simpler first."""
    others = [candidate for candidate, levels in screened.items() if levels and candidate != DEFAULT]
    others.sort(key=lambda candidate: len(candidate.changes))
    others.sort(key=lambda candidate: _rank(screened[candidate], limit_ms), reverse=True)
    return (DEFAULT, *others[:FINALISTS])


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is recommended, and in a sentence or two why."""

    recommended: Candidate
    reason: str


def medians(rounds: Sequence[Round]) -> Round:
    """Each figure's median over the rounds, level by level."""
    return tuple(
        Level(
            concurrency=levels[0].concurrency,
            throughput=statistics.median(level.throughput for level in levels),
            p50_ms=statistics.median(level.p50_ms for level in levels),
            p99_ms=statistics.median(level.p99_ms for level in levels),
        )
        for levels in zip(*rounds, strict=True)
    )


def decide(rounds: Mapping[Candidate, Sequence[Round]], *, limit_ms: float) -> Verdict:
    """The verdict over the final rounds, the default's among them, all equally many.

    Another must beat the default's median by more than the default differs from itself (its highest less its lowest
    round), in requests per second where the default meets the limit, else in p99. Of those that do, the best; of those
    that the best does not beat by more than it differs from itself, the simplest.
    """
    own = rounds[DEFAULT]
    if len(own) < FINAL_ROUNDS:
        return Verdict(
            DEFAULT, f"There was time for {len(own)} of {FINAL_ROUNDS} final rounds, too few to tell anything; raise --budget-s."
        )
    scores = {candidate: score(medians(each), limit_ms=limit_ms) for candidate, each in rounds.items()}
    default, spread = scores[DEFAULT], _spread(own, scores[DEFAULT], limit_ms)
    noise = f"{spread:.0f} requests/s" if default.meets_limit else f"{spread:.1f} ms of p99"
    missed = "" if any(each.meets_limit for each in scores.values()) else _missed(limit_ms)
    winners = [candidate for candidate, each in scores.items() if candidate != DEFAULT and _gain(each, default) > spread]
    if not winners:
        reason = f"Nothing beats the default, {_figures(default)}, by more than the default's own rounds differ: {noise}."
        return Verdict(DEFAULT, missed + reason)
    chosen = _simplest_of_the_best(winners, scores, rounds, limit_ms=limit_ms)
    reason = f"{_figures(scores[chosen])}; the default: {_figures(default)}, and its own rounds differ by {noise}."
    return Verdict(chosen, missed + reason)


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
    """How far apart the rounds are, each taken by itself, in the figure that `_gain` compares.

    Each may have another best level: where a p99 is now within the limit and now beyond it, that is noise as well.
    """
    scores = [score(levels, limit_ms=limit_ms) for levels in rounds]
    if median.meets_limit:
        values = [each.level.throughput for each in scores if each.meets_limit]
    else:
        values = [each.lowest_p99_ms for each in scores]
    return max(values) - min(values)


def _gain(one: Score, other: Score) -> float:
    """By how much it beats the other: in requests per second where the other meets the limit, else in ms of the lowest p99."""
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
    """Seconds that measuring has taken so far, on average."""

    start_s: float
    """To serve a candidate until it is warm, and to end that."""
    round_s: float
    """All its levels once, in the search."""
    run_s: float
    """What each measurement of such a round was asked to take."""


def search_run_s(axes: Sequence[Axis], *, levels: int, budget_s: float) -> float:
    """How long each measurement of the search is to take, so that one pass over all knobs and as long final rounds fit the budget."""
    servers = expected_candidates(axes) + 1 + FINALISTS
    runs = levels * (expected_candidates(axes) + (1 + FINALISTS) * FINAL_ROUNDS)
    return _bounded((budget_s * (1 - _MARGIN) - servers * _START_S) / runs)


def may_screen(costs: Costs, *, screened: int, elapsed_s: float, budget_s: float) -> bool:
    """Whether, after so many candidates, one more can be measured and final rounds of the best still fit, if short ones."""
    shortest = costs.round_s * max(_SHORTEST_FINAL, _SHORTEST_RUN_S / costs.run_s)
    finals_s = (1 + min(FINALISTS, screened)) * (costs.start_s + FINAL_ROUNDS * shortest)
    return elapsed_s + costs.start_s + costs.round_s + finals_s * (1 + _MARGIN) <= budget_s


def final_run_s(costs: Costs, *, finalists: int, left_s: float) -> float:
    """How long each measurement of a final round is to take: those of the search, scaled to what is left of the time."""
    rounds_s = left_s * (1 - _MARGIN) - finalists * costs.start_s
    return _bounded(costs.run_s * rounds_s / (finalists * FINAL_ROUNDS * costs.round_s))


def _bounded(run_s: float) -> float:
    return min(max(run_s, _SHORTEST_RUN_S), _LONGEST_RUN_S)
