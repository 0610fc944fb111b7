from __future__ import annotations

from math import inf

import pytest

from control_plane.admission.domain.caller_patience import CallerPatience

KIND, OTHER = ("team", 4), ("team", 2)


def seen(left_s: list[float], stayed_s: list[float]) -> CallerPatience:
    patience = CallerPatience()
    patience.left(KIND, left_s[0], 0.0)
    for for_s in stayed_s:
        patience.stayed(KIND, for_s)
    for after_s in left_s[1:]:
        patience.left(KIND, after_s, 0.0)
    return patience


@pytest.mark.parametrize(
    ("left_s", "stayed_s", "stays_s"),
    [
        pytest.param([1.0] * 20, [], 1.0, id="all leave after a second"),
        pytest.param([1.0] * 10, [0.7] * 50, 1.0, id="those answered sooner might have left then, too"),
        pytest.param([1.0] * 4, [0.7] * 50, inf, id="a few show nothing"),
        pytest.param([0.005] * 30, [0.7] * 34, inf, id="as many leave at once as stay"),
        pytest.param([0.005] * 30 + [1.0] * 10, [0.7] * 24, 1.0, id="others leave at once, and those who wait after a second"),
        pytest.param([1.0] * 10, [20.0] * 50, inf, id="most stay longer"),
        pytest.param([0.9, 1.1] * 10, [], 1.1, id="some sooner"),
    ],
)
def test_how_long_callers_stay(left_s: list[float], stayed_s: list[float], stays_s: float) -> None:
    assert seen(left_s, stayed_s).stays_s(KIND, 0.0) == pytest.approx(stays_s)


def test_kinds_are_apart_and_one_of_which_nobody_left_costs_nothing() -> None:
    patience = seen([1.0] * 10, [])
    patience.stayed(OTHER, 1.0)
    assert (patience.stays_s(KIND, 0.0), patience.stays_s(OTHER, 0.0)) == (1.0, inf)
    assert list(patience._kinds) == [KIND]


def test_what_nobody_confirms_is_doubted_more_and_more_and_forgotten() -> None:
    patience = seen([1.0] * 10, [])
    later = [patience.stays_s(KIND, now_s) for now_s in (0.0, 16.0, 32.0, 81.0)]
    assert later == pytest.approx([1.0, 2.0, 4.0, inf])
    patience.left(KIND, 1.0, 40.0)
    assert patience.stays_s(KIND, 40.0) == pytest.approx(1.0)


def test_the_last_128_count_and_256_kinds_are_remembered() -> None:
    patience = seen([0.1] * 128, [])
    for _ in range(120):
        patience.left(KIND, 5.0, 0.0)
    assert patience.stays_s(KIND, 0.0) == 5.0
    for number in range(256):
        patience.left((f"{number}", 0), 1.0, 0.0)
    assert len(patience._kinds) == 256
    assert patience.stays_s(KIND, 0.0) == inf


def test_of_thousands_who_leave_together_one_estimate_is_made() -> None:
    patience = seen([1.0] * 20, [])
    kind = patience._kinds[KIND]
    for _ in range(5000):
        patience.left(KIND, 0.5, 7.0)
    assert (kind._stays_s, kind._left_s) == (inf, 7.0), "nobody has asked yet"
    assert patience.stays_s(KIND, 7.0) == 0.5
    assert kind._left_s is None
