from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.metering.domain.learned_cost import LearnedCost, learn, newly_computed
from control_plane.triton.compute_time import NOTHING, Computed, ComputeTime

MS = 1_000_000


@pytest.mark.parametrize(
    ("before", "counted", "expected"),
    [
        pytest.param(None, ComputeTime(4, 8 * MS), (Computed(4, 8.0), True), id="first seen: all of it"),
        pytest.param(ComputeTime(), ComputeTime(4, 8 * MS), (Computed(4, 8.0), True), id="loaded, and not used until now"),
        pytest.param(ComputeTime(4, 8 * MS), ComputeTime(6, 9 * MS), (Computed(2, 1.0), False), id="what is new"),
        pytest.param(ComputeTime(4, 8 * MS), ComputeTime(4, 8 * MS), (NOTHING, False), id="nothing new"),
        pytest.param(None, ComputeTime(), (NOTHING, False), id="nothing ever"),
        pytest.param(ComputeTime(4, 8 * MS), ComputeTime(1, 9 * MS), (Computed(1, 9.0), True), id="loaded anew: rows began anew"),
        pytest.param(ComputeTime(4, 8 * MS), ComputeTime(5, 1 * MS), (Computed(5, 1.0), True), id="loaded anew: time began anew"),
        pytest.param(ComputeTime(4, 8 * MS), ComputeTime(), (NOTHING, False), id="loaded anew, and not used"),
    ],
)
def test_what_is_new_since_the_last_look(before: ComputeTime | None, counted: ComputeTime, expected: tuple[Computed, bool]) -> None:
    assert newly_computed(before, counted) == expected


def after(*looks: tuple[Computed, Computed], elapsed_s: float = 5.0) -> float | None:
    """Return the mean after polls with this much compute time, after a load and otherwise."""
    known = LearnedCost()
    for after_load, steady in looks:
        known = learn(known, after_load=after_load, steady=steady, elapsed_s=elapsed_s)
    return known.mean_ms


def test_nothing_is_known_until_there_was_one() -> None:
    assert after() is None
    assert after((NOTHING, NOTHING)) is None


def test_a_loads_first_executions_count_until_there_are_others() -> None:
    first, quick = (Computed(1, 80.0), NOTHING), (NOTHING, Computed(1, 11.7))
    assert after(first) == 80.0
    assert after(first, quick) == pytest.approx(11.7)
    assert after(first, quick, first) == pytest.approx(11.7)


def test_each_row_counts_alike_but_the_recent_more() -> None:
    many, few = (NOTHING, Computed(100, 100.0)), (NOTHING, Computed(1, 50.0))
    assert after(many, few) == pytest.approx((0.5**0.5 * 100 + 50) / (0.5**0.5 * 100 + 1))


@pytest.mark.parametrize(("elapsed_s", "looks"), [(0.25, 240), (5.0, 12)])
def test_a_model_that_has_changed_is_known_within_a_minute_however_often_is_looked(elapsed_s: float, looks: int) -> None:
    per_look = 10 * elapsed_s
    before, now = (NOTHING, Computed(per_look, 10 * per_look)), (NOTHING, Computed(per_look, 20 * per_look))
    assert after(*[before] * looks, *[now] * looks, elapsed_s=elapsed_s) == pytest.approx(20.0, rel=0.02)


def test_a_pause_makes_no_request_the_measure_of_all() -> None:
    steady, odd = (NOTHING, Computed(100, 100.0)), (NOTHING, Computed(1, 50.0))
    assert after(steady, odd, elapsed_s=86_400.0) == after(steady, odd, elapsed_s=5.0)


looks = st.tuples(st.integers(0, 100), st.floats(0, 1e6))


@given(st.lists(looks, max_size=20), st.floats(0, 100))
def test_the_mean_lies_among_what_was_measured(found: list[tuple[int, float]], elapsed_s: float) -> None:
    seen = [Computed(rows, ms) for rows, ms in found if rows]
    mean_ms = after(*((NOTHING, each) for each in seen), elapsed_s=elapsed_s)
    if mean_ms is None:
        assert not seen
    else:
        means = [each.ms / each.rows for each in seen]
        assert min(means) * (1 - 1e-9) <= mean_ms <= max(means) * (1 + 1e-9)
