from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.fleet.domain.health.outliers import OutlierLimits, Outliers

LIMITS = OutlierLimits(
    max_errors=5,
    max_slowness=3.0,
    min_answers=30,
    max_ejected_part=0.34,
    first_pause_s=5.0,
    max_pause_s=60.0,
    min_good_probes=3,
    probe_interval_s=1.0,
    pause_reset_after_s=120.0,
)
POOL = ["a", "b", "c"]


def after(slowness: dict[str, float], *, answers: int = 100) -> Outliers:
    """Return a detector that has seen servers answer in these multiples of the expected time."""
    outliers = Outliers(LIMITS)
    for _ in range(answers):
        for name, times in slowness.items():
            outliers.note_answer(name, 0.01 * times, expected_s=0.01, now_s=0.0)
    return outliers


def fail(outliers: Outliers, name: str, times: int = 5, now_s: float = 0.0) -> None:
    for _ in range(times):
        outliers.note_failure(name, now_s)


def try_it(outliers: Outliers, name: str, now_s: float, *, slowness: float | None) -> None:
    """Probe a server; a slowness of None means that it does not answer."""
    outliers.note_probe(name, now_s)
    if slowness is None:
        outliers.note_failure(name, now_s)
    else:
        outliers.note_answer(name, slowness, expected_s=1.0, now_s=now_s)


@pytest.mark.parametrize(
    ("slowness", "ejected"),
    [
        pytest.param({"a": 1.0, "b": 1.2, "c": 0.8}, [], id="all well"),
        pytest.param({"a": 1.0, "b": 1.0, "c": 2.9}, [], id="one is slower"),
        pytest.param({"a": 1.0, "b": 1.0, "c": 3.1}, ["c"], id="one is far slower"),
        pytest.param({"a": 9.0, "b": 9.0, "c": 9.0}, [], id="all are slow"),
        pytest.param({"a": 1.0, "b": 9.0, "c": 20.0}, [], id="no majority is well"),
        pytest.param({"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0, "e": 50.0, "f": 9.0}, ["e", "f"], id="two of six"),
        pytest.param({"a": 1.0, "b": 1.0, "c": 1.0, "d": 8.0, "e": 9.0}, ["e"], id="two of five would be too many: the worst"),
        pytest.param({"a": 1.0, "b": 9.0}, [], id="one of two would be too many"),
        pytest.param({"a": 9.0}, [], id="the only one"),
    ],
)
def test_slow_servers(slowness: dict[str, float], ejected: list[str]) -> None:
    assert sorted(after(slowness).judge(list(slowness), 7.0)) == ejected


def test_few_answers_say_nothing() -> None:
    outliers = after({"a": 1.0, "b": 1.0})
    for _ in range(29):
        outliers.note_answer("c", 50.0, expected_s=1.0, now_s=0.0)
    assert outliers.judge(POOL, 0.0) == {}
    outliers.note_answer("c", 50.0, expected_s=1.0, now_s=0.0)
    assert outliers.judge(POOL, 0.0).keys() == {"c"}


def test_who_is_out_stays_out_when_another_does_badly() -> None:
    outliers = Outliers(LIMITS)
    fail(outliers, "b")
    assert outliers.judge(POOL, 0.0).keys() == {"b"}
    fail(outliers, "c", times=9)
    assert outliers.judge(POOL, 1.0).keys() == {"b"}


def test_what_was_long_ago_is_forgotten() -> None:
    outliers = after({"a": 1.0, "b": 1.0, "c": 5.0}, answers=200)
    for _ in range(90):
        outliers.note_answer("c", 1.0, expected_s=1.0, now_s=1.0)
    assert outliers.judge(POOL, 1.0) == {}


@pytest.mark.parametrize(
    ("outcomes", "is_ejected"),
    [
        pytest.param("xxxx", False, id="a few errors"),
        pytest.param("xxxxx", True, id="one more"),
        pytest.param("xxxx.xxxx", False, id="not in a row"),
    ],
)
def test_errors(outcomes: str, is_ejected: bool) -> None:
    outliers = Outliers(LIMITS)
    for outcome in outcomes:
        if outcome == "x":
            outliers.note_failure("b", 1.0)
        else:
            outliers.note_answer("b", 1.0, expected_s=1.0, now_s=1.0)
    assert outliers.judge(POOL, 1.0) == ({"b": 6.0} if is_ejected else {})


def test_an_answer_whose_time_says_nothing_is_an_answer_all_the_same() -> None:
    outliers = after({"a": 1.0, "b": 1.0, "c": 1.0})
    fail(outliers, "b", times=4)
    outliers.note_untimed_answer("b", 0.0)
    fail(outliers, "b", times=4)
    assert outliers.judge(POOL, 0.0) == {}


def test_and_a_trial_that_does_well_there_may_be_no_others() -> None:
    outliers = Outliers(LIMITS)
    fail(outliers, "b")
    assert outliers.judge(POOL, 0.0) == {"b": 5.0}
    for number in range(3):
        outliers.note_untimed_answer("b", 5.0 + number)
        assert outliers.judge(POOL, 5.0 + number).keys() == {"b"}, "of before it was ejected"
    for number in range(3):
        assert outliers.judge(POOL, 8.0 + number).keys() == {"b"}
        outliers.note_probe("b", 8.0 + number)
        outliers.note_untimed_answer("b", 8.0 + number)
    assert outliers.judge(POOL, 11.0) == {}


def test_whom_nobody_comes_to_try_is_trusted_again_with_a_longer_pause_if_that_was_wrong() -> None:
    """The server may have lost the models it had, and this process may have no requests left to probe it
    with."""
    outliers = Outliers(LIMITS)
    fail(outliers, "b")
    assert outliers.judge(POOL, 0.0) == {"b": 5.0}
    assert outliers.judge(POOL, 15.0).keys() == {"b"}
    assert outliers.judge(POOL, 15.1) == {}
    fail(outliers, "b", now_s=20.0)
    assert outliers.judge(POOL, 20.0) == {"b": 30.0}


def test_each_pool_is_judged_by_its_own() -> None:
    """Servers for long requests are no outliers beside servers for short ones."""
    outliers = after({"s0": 1.0, "s1": 1.0, "s2": 1.0, "l0": 9.0, "l1": 9.0, "l2": 9.0})
    assert outliers.judge(["s0", "s1", "s2"], 0.0) == outliers.judge(["l0", "l1", "l2"], 0.0) == {}


def test_errors_count_more_than_slowness() -> None:
    outliers = after({"a": 1.0, "b": 1.0, "c": 50.0})
    fail(outliers, "b")
    assert outliers.judge(POOL, 0.0).keys() == {"b"}


def test_it_is_back_after_some_trials_that_do_well() -> None:
    outliers = after({"a": 1.0, "b": 1.0, "c": 5.0})
    assert outliers.judge(POOL, 0.0) == {"c": 5.0}
    for number in range(3):
        assert outliers.judge(POOL, 5.0 + number).keys() == {"c"}
        try_it(outliers, "c", 5.0 + number, slowness=1.0)
    assert outliers.judge(POOL, 8.0) == {}


def test_trials_come_one_after_the_other() -> None:
    outliers = after({"a": 1.0, "b": 1.0, "c": 5.0})
    outliers.judge(POOL, 0.0)
    assert outliers.note_probe("c", 5.0) == 6.0
    assert outliers.judge(POOL, 5.1) == {"c": 6.0}


@pytest.mark.parametrize("slowness", [pytest.param(None, id="an error"), pytest.param(4.0, id="slow")])
def test_a_trial_that_goes_wrong_means_a_longer_pause(slowness: float | None) -> None:
    outliers = after({"a": 1.0, "b": 1.0, "c": 5.0})
    outliers.judge(POOL, 0.0)
    pauses, now_s = [], 5.0
    for _ in range(5):
        try_it(outliers, "c", now_s, slowness=slowness)
        until_s = outliers.judge(POOL, now_s)["c"]
        pauses.append(until_s - now_s)
        now_s = until_s
    assert pauses == [10.0, 20.0, 40.0, 60.0, 60.0]


def test_requests_from_before_are_no_trials() -> None:
    outliers = after({"a": 1.0, "b": 1.0, "c": 5.0})
    outliers.judge(POOL, 0.0)
    for _ in range(5):
        outliers.note_answer("c", 1.0, expected_s=1.0, now_s=0.5)
        outliers.note_failure("c", 0.5)
    assert outliers.judge(POOL, 1.0) == {"c": 5.0}


@pytest.mark.parametrize(("again_s", "pause_s"), [pytest.param(20.0, 10.0, id="soon again"), pytest.param(200.0, 5.0, id="long after")])
def test_who_is_ejected_again_soon_stays_out_longer(again_s: float, pause_s: float) -> None:
    outliers = Outliers(LIMITS)
    fail(outliers, "b")
    outliers.judge(POOL, 0.0)
    for number in range(3):
        try_it(outliers, "b", 5.0 + number, slowness=1.0)
    fail(outliers, "b", now_s=again_s)
    assert outliers.judge(POOL, again_s) == {"b": again_s + pause_s}


def test_who_has_left_begins_anew() -> None:
    outliers = Outliers(LIMITS)
    fail(outliers, "b")
    outliers.judge(POOL, 0.0)
    outliers.retain_only({"a", "c"})
    assert outliers.judge(POOL, 0.0) == {}


def test_a_pool_that_shrinks_takes_somebody_back() -> None:
    outliers = Outliers(LIMITS)
    fail(outliers, "b")
    assert outliers.judge(POOL, 0.0)
    assert outliers.judge(["a", "b"], 1.0) == {}


events = st.lists(st.tuples(st.sampled_from("abcdefg"), st.sampled_from(["fail", "slow", "well", "try"]), st.floats(0, 20)), max_size=120)


@given(events, st.integers(1, 7))
def test_never_more_than_a_part_is_ejected(events: list[tuple[str, str, float]], size: int) -> None:
    limits = OutlierLimits(max_errors=2, min_answers=2)
    outliers, pool, now_s = Outliers(limits), "abcdefg"[:size], 0.0
    for name, event, passed_s in events:
        now_s += passed_s
        if event == "fail":
            outliers.note_failure(name, now_s)
        elif event == "try":
            outliers.note_probe(name, now_s)
        else:
            outliers.note_answer(name, 9.0 if event == "slow" else 1.0, expected_s=1.0, now_s=now_s)
        ejected = outliers.judge(pool, now_s)
        assert len(ejected) <= limits.max_ejected_part * size
        assert ejected.keys() <= set(pool)
