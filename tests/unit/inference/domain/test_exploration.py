"""Exploration: how often a model that seems to exceed budgets is tried."""

from __future__ import annotations

from math import inf

import pytest

from control_plane.inference.domain.exploration import Exploration


@pytest.mark.parametrize(("times_over", "one_in"), [(0.5, 26), (1.1, 26), (16.0, 26), (32.0, 51), (256.0, 401)])
def test_one_that_seems_over_budget_is_tried_now_and_then_the_farther_the_less(times_over: float, one_in: int) -> None:
    exploration = Exploration()
    for _ in range(3):
        tries = [exploration.admits(times_over) for _ in range(one_in)]
        assert sum(tries) == 1
        assert tries[-1]


def test_one_that_is_asked_anyway_is_not_tried_besides() -> None:
    exploration = Exploration()
    for _ in range(10):
        assert not any(exploration.admits(2.0) for _ in range(25))
        assert exploration.admits(None)


def test_a_caller_with_a_tiny_budget_has_no_more_requests_of_others_let_through() -> None:
    exploration, tries = Exploration(), 0
    for _ in range(260):
        for _ in range(100):
            exploration.admits(1600.0)
        tries += exploration.admits(2.0)
    assert 0 < tries <= 20


def test_requests_that_never_go_there_count_for_no_other() -> None:
    exploration = Exploration()
    assert not any(exploration.admits(inf) for _ in range(100))
    assert not exploration.admits(2.0)
