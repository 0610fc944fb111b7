from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.tuning.domain.candidates import DEFAULT, Candidate, Knob, Level, Round
from control_plane.tuning.domain.search import (
    FINAL_ROUNDS,
    FINALISTS,
    MAX_PASSES,
    Axis,
    Costs,
    choose_finalists,
    decide,
    expected_candidates,
    final_run_s,
    make_axes,
    may_screen,
    medians,
    next_candidate,
    score,
    search_run_s,
)

ALL = {Knob.INSTANCES: 1, Knob.THREADS: 0, Knob.LANES: 1, Knob.QUEUE_DELAY: 0}
TWO_INSTANCES = DEFAULT.changed(Knob.INSTANCES, 2)
ONE_THREAD = DEFAULT.changed(Knob.THREADS, 1)
BOTH = TWO_INSTANCES.changed(Knob.THREADS, 1)


def level(throughput: float, p99_ms: float = 5.0, concurrency: int = 8) -> Level:
    return Level(concurrency, throughput, p99_ms / 2, p99_ms)


def tried(axes: Sequence[Axis]) -> dict[Knob, tuple[int | str, ...]]:
    return {axis.knob: axis.alternatives for axis in axes}


# What is tried


@pytest.mark.parametrize(
    ("present", "cpus", "on_cpu", "limit_ms", "expected"),
    [
        pytest.param(
            ALL,
            [0, 1],
            True,
            10,
            {
                Knob.INSTANCES: (2,),
                Knob.THREADS: (1, 2),
                Knob.LANES: (2,),
                Knob.QUEUE_DELAY: (100, 500, 2000),
                Knob.MODEL_CPUS: ("1",),
                Knob.TRITON_CPUS: ("1",),
            },
            id="two CPUs",
        ),
        pytest.param(
            {Knob.INSTANCES: 2},
            range(16),
            True,
            10,
            {Knob.INSTANCES: (1, 8, 16), Knob.MODEL_CPUS: ("1-15",), Knob.TRITON_CPUS: ("1-15",)},
            id="many CPUs, no more than the model has",
        ),
        pytest.param({Knob.INSTANCES: 1}, [5], True, 10, {}, id="one CPU: nothing to turn"),
        pytest.param({Knob.QUEUE_DELAY: 100}, [0], True, 0.5, {Knob.QUEUE_DELAY: (0,)}, id="no delay beyond a quarter of the limit"),
        pytest.param({Knob.QUEUE_DELAY: 0}, [0, 1, 3], True, 1, {Knob.QUEUE_DELAY: (100,)}, id="CPUs that are no range are not pinned to"),
        pytest.param(
            ALL,
            range(4),
            False,
            10,
            {Knob.INSTANCES: (2, 4), Knob.LANES: (2, 4), Knob.QUEUE_DELAY: (100, 500, 2000), Knob.TRITON_CPUS: ("1-3",)},
            id="on a GPU neither threads nor the model's CPUs",
        ),
    ],
)
def test_axes(
    present: Mapping[Knob, int], cpus: Sequence[int], on_cpu: bool, limit_ms: float, expected: dict[Knob, tuple[int | str, ...]]
) -> None:
    axes = make_axes(present, cpus=cpus, on_cpu=on_cpu, limit_ms=limit_ms)
    assert tried(axes) == expected
    assert expected_candidates(axes) == 1 + sum(map(len, expected.values()))


# What a round is worth


def test_a_score_is_the_most_requests_within_the_limit() -> None:
    levels = (level(100, 2, 1), level(300, 9, 8), level(900, 40, 32))
    found = score(levels, limit_ms=10)
    assert (found.meets_limit, found.level.concurrency, found.lowest_p99_ms) == (True, 8, 2)


def test_beyond_the_limit_it_is_the_lowest_p99() -> None:
    found = score((level(100, 20, 1), level(300, 90, 8)), limit_ms=10)
    assert (found.meets_limit, found.level.concurrency, found.lowest_p99_ms) == (False, 1, 20)


def test_the_limit_itself_is_within() -> None:
    assert score((level(1, 10),), limit_ms=10).meets_limit


def test_medians_are_of_each_figure_and_level() -> None:
    rounds = [(level(10, 1, 1), level(50, 9, 8)), (level(30, 3, 1), level(40, 8, 8)), (level(20, 2, 1), level(60, 7, 8))]
    assert medians(rounds) == (level(20, 2, 1), level(50, 8, 8))


# The search

AXES = (Axis(Knob.INSTANCES, (2, 4)), Axis(Knob.THREADS, (1, 2)))


def search(axes: Sequence[Axis], worth: Mapping[Candidate, Round], otherwise: Round = ()) -> list[Candidate]:
    """Run the search where each candidate scores as `worth` says; return all candidates measured, in order."""
    screened: dict[Candidate, Round] = {}
    while (candidate := next_candidate(axes, screened, limit_ms=10)) is not None:
        assert candidate not in screened, "measured twice"
        screened[candidate] = worth.get(candidate, otherwise)
    return list(screened)


def test_the_default_comes_first_and_one_knob_after_the_other() -> None:
    four_instances = DEFAULT.changed(Knob.INSTANCES, 4)
    worth = {DEFAULT: (level(100),), TWO_INSTANCES: (level(200),), BOTH: (level(150),)}
    two_threads = TWO_INSTANCES.changed(Knob.THREADS, 2)
    measured = search(AXES, worth, (level(50),))
    assert measured[:5] == [DEFAULT, TWO_INSTANCES, four_instances, BOTH, two_threads]


def test_a_knob_is_tried_again_after_another_has_moved() -> None:
    worth = {DEFAULT: (level(100),), ONE_THREAD: (level(200),), BOTH: (level(300),)}
    measured = search(AXES, worth, (level(50),))
    assert BOTH in measured, "instances alone were no gain, with one thread they are"


def test_what_cannot_be_served_is_never_moved_to() -> None:
    measured = search(AXES, {DEFAULT: (level(100, 500),)}, ())
    assert measured == [DEFAULT, TWO_INSTANCES, DEFAULT.changed(Knob.INSTANCES, 4), ONE_THREAD, DEFAULT.changed(Knob.THREADS, 2)]


def test_equal_ones_leave_the_default() -> None:
    assert all(len(candidate.changes) < 2 for candidate in search(AXES, {}, (level(100),)))


def test_meeting_the_limit_goes_before_any_throughput() -> None:
    measured = search(AXES, {DEFAULT: (level(900, 50),), TWO_INSTANCES: (level(10, 9),)}, (level(500, 20),))
    assert BOTH in measured


def test_no_axes_no_more_than_the_default() -> None:
    assert search((), {}, (level(1),)) == [DEFAULT]


@given(st.data())
def test_every_search_ends_within_its_passes(data: st.DataObject) -> None:
    axes = [Axis(knob, data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3, unique=True).map(tuple))) for knob in list(Knob)[:4]]
    screened: dict[Candidate, Round] = {}
    while (candidate := next_candidate(axes, screened, limit_ms=10)) is not None:
        assert candidate not in screened
        screened[candidate] = data.draw(st.sampled_from([(), (level(1),), (level(2),), (level(3, 11),), (level(4, 12),)]))
        assert next_candidate(axes, screened, limit_ms=10) == next_candidate(axes, dict(screened), limit_ms=10)
    assert next(iter(screened)) == DEFAULT
    assert len(screened) <= 1 + MAX_PASSES * (expected_candidates(axes) - 1)


def test_finalists_are_the_default_and_the_best_others() -> None:
    four = DEFAULT.changed(Knob.INSTANCES, 4)
    screened = {DEFAULT: (level(999),), TWO_INSTANCES: (level(200),), four: (), ONE_THREAD: (level(500, 50),), BOTH: (level(300),)}
    assert choose_finalists(screened, limit_ms=10) == (DEFAULT, BOTH, TWO_INSTANCES)
    assert len(choose_finalists(screened, limit_ms=10)) == 1 + FINALISTS


def test_of_equals_the_simpler_is_a_finalist() -> None:
    screened = {DEFAULT: (level(1),), BOTH: (level(2),), TWO_INSTANCES: (level(2),), ONE_THREAD: (level(2),)}
    assert choose_finalists(screened, limit_ms=10) == (DEFAULT, TWO_INSTANCES, ONE_THREAD)


# The recommendation


def rounds_of(*throughputs: float, p99_ms: float | Sequence[float] = 5.0) -> list[Round]:
    p99s = [p99_ms] * len(throughputs) if isinstance(p99_ms, int | float) else p99_ms
    return [(level(throughput, p99),) for throughput, p99 in zip(throughputs, p99s, strict=True)]


DEFAULT_ROUNDS = rounds_of(95, 100, 105, 98, 102)  # median 100, spread 10


@pytest.mark.parametrize(
    ("others", "recommended", "says"),
    [
        pytest.param({TWO_INSTANCES: rounds_of(*[130] * 5)}, TWO_INSTANCES, "130 requests/s", id="clearly better"),
        pytest.param({TWO_INSTANCES: rounds_of(*[110] * 5)}, DEFAULT, "Nothing beats the default", id="within the spread"),
        pytest.param({TWO_INSTANCES: rounds_of(*[111] * 5)}, TWO_INSTANCES, "111 requests/s", id="just beyond it"),
        pytest.param({TWO_INSTANCES: rounds_of(*[90] * 5)}, DEFAULT, "10 requests/s", id="worse"),
        pytest.param({TWO_INSTANCES: rounds_of(*[900] * 5, p99_ms=11)}, DEFAULT, "Nothing beats", id="faster, beyond the limit"),
        pytest.param({}, DEFAULT, "Nothing beats", id="nothing else could be served"),
        pytest.param({BOTH: rounds_of(*[140] * 5), TWO_INSTANCES: rounds_of(*[140] * 5)}, TWO_INSTANCES, "140", id="equal: the simpler"),
        pytest.param(
            {BOTH: rounds_of(130, 140, 145, 150, 160), TWO_INSTANCES: rounds_of(*[125] * 5)},
            TWO_INSTANCES,
            "125 requests/s",
            id="not told apart: the simpler",
        ),
        pytest.param({BOTH: rounds_of(*[200] * 5), TWO_INSTANCES: rounds_of(*[140] * 5)}, BOTH, "200", id="told apart: the better"),
        pytest.param(
            {TWO_INSTANCES: rounds_of(*[140] * 5), ONE_THREAD: rounds_of(*[141] * 5)}, ONE_THREAD, "141", id="as simple: the better"
        ),
    ],
)
def test_where_the_default_meets_the_limit(others: dict[Candidate, list[Round]], recommended: Candidate, says: str) -> None:
    recommendation = decide({DEFAULT: DEFAULT_ROUNDS, **others}, limit_ms=10)
    assert recommendation.candidate == recommended
    assert says in recommendation.reason
    assert "does not meet" not in recommendation.reason


SLOW_DEFAULT = rounds_of(*[100] * 5, p99_ms=[30, 32, 34, 36, 38])  # median 34, spread 8


@pytest.mark.parametrize(
    ("others", "recommended", "missed"),
    [
        pytest.param({TWO_INSTANCES: rounds_of(*[80] * 5, p99_ms=9)}, TWO_INSTANCES, False, id="another meets it, with fewer requests"),
        pytest.param({TWO_INSTANCES: rounds_of(*[80] * 5, p99_ms=20)}, TWO_INSTANCES, True, id="none meets it: the lowest p99"),
        pytest.param({TWO_INSTANCES: rounds_of(*[900] * 5, p99_ms=27)}, DEFAULT, True, id="lower, within the default's spread"),
        pytest.param({}, DEFAULT, True, id="there is no other"),
        pytest.param(
            {TWO_INSTANCES: rounds_of(*[80] * 5, p99_ms=9), BOTH: rounds_of(*[90] * 5, p99_ms=9)}, BOTH, False, id="the best that do"
        ),
        pytest.param(
            {TWO_INSTANCES: rounds_of(*[80] * 5, p99_ms=20), BOTH: rounds_of(*[90] * 5, p99_ms=9)}, BOTH, False, id="one of two does"
        ),
    ],
)
def test_where_the_default_misses_the_limit(others: dict[Candidate, list[Round]], recommended: Candidate, missed: bool) -> None:
    recommendation = decide({DEFAULT: SLOW_DEFAULT, **others}, limit_ms=10)
    assert recommendation.candidate == recommended
    assert ("This machine does not meet a p99 of 10 ms" in recommendation.reason) is missed


@pytest.mark.parametrize("count", range(FINAL_ROUNDS))
def test_too_few_rounds_tell_nothing(count: int) -> None:
    recommendation = decide({DEFAULT: DEFAULT_ROUNDS[:count], TWO_INSTANCES: rounds_of(*[999] * count)}, limit_ms=10)
    assert recommendation.candidate == DEFAULT
    assert f"{count} of {FINAL_ROUNDS} final rounds" in recommendation.reason
    assert "--budget-s" in recommendation.reason


def test_the_spread_is_taken_at_the_level_that_counts() -> None:
    calm, wild = [level(100, 5, 8)] * 5, [level(throughput, 50, 32) for throughput in (100, 500, 900, 300, 700)]
    default = list(zip(calm, wild, strict=True))
    better = [(level(101, 5, 8), level(100, 50, 32))] * 5
    assert decide({DEFAULT: default, TWO_INSTANCES: better}, limit_ms=10).candidate == TWO_INSTANCES


def test_a_p99_that_is_now_within_and_now_beyond_the_limit_is_noise() -> None:
    quick = level(100, 5, 1)
    default = [(quick, level(170, p99_ms, 8)) for p99_ms in (8, 11, 9, 12, 13)]  # the median of the second is beyond 10
    better = [(quick, level(160, 8, 8))] * 5
    assert decide({DEFAULT: default, TWO_INSTANCES: better}, limit_ms=10).candidate == DEFAULT
    assert decide({DEFAULT: default, TWO_INSTANCES: [(level(171, 8, 8),)] * 5}, limit_ms=10).candidate == TWO_INSTANCES


@given(st.lists(st.floats(1, 1000), min_size=5, max_size=9), st.lists(st.floats(1, 1000), min_size=5, max_size=9))
def test_what_is_recommended_beats_the_default(own: list[float], other: list[float]) -> None:
    default, another = rounds_of(*own), rounds_of(*other)
    recommendation = decide({DEFAULT: default, TWO_INSTANCES: another}, limit_ms=10)
    gain = medians(another)[0].throughput - medians(default)[0].throughput
    assert (recommendation.candidate == TWO_INSTANCES) == (gain > max(own) - min(own))


# Time


def test_a_run_is_as_long_as_the_budget_allows_within_bounds() -> None:
    axes = make_axes(ALL, cpus=[0, 1], on_cpu=True, limit_ms=10)
    lengths = [search_run_s(axes, levels=3, budget_s=budget) for budget in (1, 100, 200, 300, 10_000)]
    assert lengths == sorted(lengths)
    assert lengths[0] == 0.8
    assert lengths[-1] == 6.0
    assert any(shorter < longer for shorter, longer in pairwise(lengths))


def test_final_rounds_are_kept_time_for() -> None:
    costs = Costs(start_s=2.0, round_s=1.0, run_s=1.6)
    finals_s = 3 * (2 + FINAL_ROUNDS * 1 / 2)
    assert may_screen(costs, screened=5, elapsed_s=0, budget_s=2 + 1 + finals_s * 1.2)
    assert not may_screen(costs, screened=5, elapsed_s=0.1, budget_s=2 + 1 + finals_s * 1.2)


def test_final_rounds_are_never_shorter_than_says_anything() -> None:
    shortest = Costs(start_s=2.0, round_s=1.0, run_s=0.8)
    finals_s = 3 * (2 + FINAL_ROUNDS * 1)
    assert may_screen(shortest, screened=5, elapsed_s=0, budget_s=2 + 1 + finals_s * 1.2)
    assert not may_screen(shortest, screened=5, elapsed_s=0.1, budget_s=2 + 1 + finals_s * 1.2)


def test_there_are_no_more_finalists_than_have_been_measured() -> None:
    costs = Costs(start_s=2.0, round_s=1.0, run_s=1.6)
    enough = [min(s for s in range(200) if may_screen(costs, screened=screened, elapsed_s=0, budget_s=s)) for screened in (1, 2, 3)]
    assert enough[0] < enough[1] == enough[2]


@pytest.mark.parametrize(
    ("left_s", "expected"),
    [
        pytest.param((3 * 2 + 3 * 5 * 4) / 0.8, 1.0, id="as long as the search's"),
        pytest.param((3 * 2 + 3 * 5 * 8) / 0.8, 2.0, id="twice"),
        pytest.param(1.0, 0.8, id="never too short to say anything"),
        pytest.param(1e6, 6.0, id="never without end"),
    ],
)
def test_final_rounds_take_what_is_left(left_s: float, expected: float) -> None:
    """Costs of rounds of four seconds, whose measurements were asked to take one second each."""
    found = final_run_s(Costs(start_s=2.0, round_s=4.0, run_s=1.0), finalists=3, left_s=left_s)
    assert found == pytest.approx(expected)
