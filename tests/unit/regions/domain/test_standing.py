from __future__ import annotations

from math import inf

import pytest

from control_plane.core.endpoints import TcpAddress
from control_plane.regions.domain.region import Region
from control_plane.regions.domain.standing import Asked, Standing, nearest

ASKED = Asked("t", "m", 1.0)


def standing(name: str, *, round_trip_s: float = 0.01, max_share: float = 1.0) -> Standing:
    made = Standing(Region(name, TcpAddress(name, 1), TcpAddress(name, 2), max_share))
    made.heard(round_trip_s)
    return made


def test_the_nearest_is_chosen() -> None:
    far, near = standing("far", round_trip_s=0.1), standing("near", round_trip_s=0.02)
    assert nearest([far, near], ASKED, 0.0) is near
    near.failed("it says nothing")
    assert nearest([far, near], ASKED, 0.0) is far
    assert nearest([], ASKED, 0.0) is None


def test_one_that_was_never_heard_gets_nothing() -> None:
    assert not Standing(Region("r", TcpAddress("r", 1), TcpAddress("r", 2))).takes(ASKED, 0.0)


@pytest.mark.parametrize(("left_s", "takes"), [(0.1, False), (0.104, False), (0.106, True)])
def test_one_that_is_too_far_for_the_time_that_is_left_is_not_asked(left_s: float, takes: bool) -> None:
    assert standing("r", round_trip_s=0.1).takes(Asked("t", "m", left_s), 0.0) is takes


def test_its_round_trip_is_a_mean_of_the_last_ones() -> None:
    found = standing("r", round_trip_s=0.1)
    found.heard(0.2)
    assert found.round_trip_s == pytest.approx(0.13)


def test_whether_it_went_or_came_is_told_once() -> None:
    found = Standing(Region("r", TcpAddress("r", 1), TcpAddress("r", 2)))
    assert found.round_trip_s == inf
    assert [found.heard(0.1), found.heard(0.1)] == [True, False]
    assert [found.failed("why"), found.failed("why")] == [True, False]
    assert found.why_not == "why"


def test_what_is_shut_is_shut_for_that_tenant_only_and_for_a_while() -> None:
    found = standing("r")
    found.shut("t", "m", 5.0)
    found.shut("u", "", 5.0)
    assert [found.takes(Asked(*whose, 1.0), 4.9) for whose in (("t", "m"), ("t", "n"), ("u", "n"), ("v", "m"))] == [
        False,
        True,
        False,
        True,
    ]
    assert found.takes(ASKED, 5.0)


def test_a_share_that_is_used_up_and_a_full_window_hold_requests_back() -> None:
    assert not standing("r", max_share=0.0).takes(ASKED, 0.0)
    found = standing("r", max_share=0.5)
    for _ in range(10):
        assert found.takes(ASKED, 0.0)
        found.credit.spend()
    assert not found.takes(ASKED, 0.0)
    full = standing("r")
    full.in_flight = 4
    assert not full.takes(ASKED, 0.0)
