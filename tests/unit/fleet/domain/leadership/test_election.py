from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.fleet.domain.leadership.election import (
    Following,
    Leading,
    LeaseLimits,
    LeaseRequest,
    State,
    after,
    at,
    may_begin,
    next_request,
    pause_s,
)
from control_plane.fleet.domain.leadership.lease import Lease

LIMITS = LeaseLimits(ttl_s=6.0, margin_s=1.0)
MINE = Lease(3, "me", 6.0)
THEIRS = Lease(2, "they", 6.0, beat=5)
SHORT = replace(MINE, ttl_s=0.5)
LOOK, TAKE, RENEW, RESUME = LeaseRequest.READ, LeaseRequest.ACQUIRE, LeaseRequest.RENEW, LeaseRequest.RESUME
NEW = Following()


@pytest.mark.parametrize(
    ("state", "request_", "found", "expected"),
    [
        pytest.param(NEW, LOOK, THEIRS, Following(THEIRS, 10.0, 10.0), id="the first look"),
        pytest.param(NEW, LOOK, None, Following(None, 10.0, 10.0), id="the first look finds none"),
        pytest.param(Following(THEIRS, 5.0, 9.0), LOOK, THEIRS, Following(THEIRS, 5.0, 10.0), id="not renewed since"),
        pytest.param(Following(None, 5.0, 9.0), LOOK, None, Following(None, 5.0, 10.0), id="still none"),
        pytest.param(Following(THEIRS, 5.0, 7.9), LOOK, THEIRS, Following(THEIRS, 10.0, 10.0), id="it had not looked for long"),
        pytest.param(
            Following(THEIRS, 5.0, 9.0), LOOK, replace(THEIRS, beat=6), Following(replace(THEIRS, beat=6), 10.0, 10.0), id="renewed"
        ),
        pytest.param(
            Following(THEIRS, 5.0, 9.0), LOOK, replace(THEIRS, beat=4), Following(replace(THEIRS, beat=4), 10.0, 10.0), id="restored"
        ),
        pytest.param(Following(THEIRS, 5.0, 9.0), LOOK, None, Following(None, 10.0, 10.0), id="lost"),
        pytest.param(Following(THEIRS, 1.0, 9.0), TAKE, MINE, Leading(MINE, 15.5), id="taken: believed from when it asked"),
        pytest.param(Following(THEIRS, 1.0, 9.0), TAKE, None, NEW, id="somebody was faster"),
        pytest.param(Following(THEIRS, 1.0, 9.0), TAKE, SHORT, Following(had=SHORT), id="taken, and over when it heard of it"),
        pytest.param(Leading(MINE, 13.0), RENEW, replace(MINE, beat=1), Leading(replace(MINE, beat=1), 15.5), id="renewed by itself"),
        pytest.param(Leading(MINE, 13.0), RENEW, None, NEW, id="taken by somebody else"),
        pytest.param(
            Leading(MINE, 9.9), RENEW, replace(MINE, beat=1), Following(had=replace(MINE, beat=1)), id="answered when it was over"
        ),
        pytest.param(Leading(MINE, 13.0), RENEW, SHORT, Following(had=SHORT), id="answered too late for what it asked"),
        pytest.param(Following(had=MINE), RESUME, replace(MINE, beat=1), Leading(replace(MINE, beat=1), 15.5), id="resumed"),
        pytest.param(Following(had=MINE), RESUME, None, NEW, id="not its own any more, or the store may have lost writes"),
    ],
)
def test_what_becomes_of_an_answer(state: State, request_: LeaseRequest, found: Lease | None, expected: State) -> None:
    assert after(state, request_, found, asked_s=9.5, now_s=10.0, limits=LIMITS) == expected


@pytest.mark.parametrize(
    ("state", "expected", "wait_s"),
    [
        pytest.param(NEW, LOOK, LIMITS.look_every_s, id="it has not looked yet"),
        pytest.param(Following(THEIRS, 3.4, 9.5), LOOK, 0.4, id="soon as long as ttl and margin"),
        pytest.param(Following(THEIRS, 2.9, 9.5), TAKE, 0.0, id="more than that"),
        pytest.param(Following(THEIRS, 2.9, 7.9), LOOK, LIMITS.look_every_s, id="more, but it has not looked lately"),
        pytest.param(Following(replace(THEIRS, ttl_s=60.0), 2.9, 9.5), LOOK, LIMITS.look_every_s, id="the holder may believe in it longer"),
        pytest.param(Following(replace(THEIRS, is_released=True), 9.9, 9.9), TAKE, 0.0, id="released"),
        pytest.param(Following(None, 3.4, 9.5), LOOK, 0.4, id="there is none, but there may have been"),
        pytest.param(Following(None, 2.9, 9.5), TAKE, 0.0, id="there is none, and who had it has stopped"),
        pytest.param(Leading(MINE, 11.0), RENEW, 0.0, id="it has it"),
        pytest.param(Following(had=replace(MINE, run="1")), RESUME, LIMITS.look_every_s, id="it had it"),
        pytest.param(Following(had=MINE), LOOK, LIMITS.look_every_s, id="it had it, of a store that cannot tell"),
    ],
)
def test_what_is_asked_next(state: State, expected: LeaseRequest, wait_s: float) -> None:
    assert next_request(state, 10.0, LIMITS) is expected
    assert pause_s(state, 10.0, LIMITS) == pytest.approx(wait_s, abs=0.002)


def test_exactly_ttl_and_margin_is_not_long_enough() -> None:
    state = Following(THEIRS, 3.0, 9.5)
    assert next_request(state, 10.0, LIMITS) is LOOK
    assert next_request(state, 10.0 + 0.001, LIMITS) is TAKE


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        pytest.param(NEW, False, id="another's"),
        pytest.param(Leading(MINE, 11.1), True, id="more than the margin is left"),
        pytest.param(Leading(MINE, 11.0), False, id="exactly the margin"),
        pytest.param(Leading(MINE, 9.0), False, id="over"),
    ],
)
def test_when_a_call_may_begin(state: State, expected: bool) -> None:
    assert may_begin(state, 10.0, LIMITS) is expected


def test_it_is_renewed_at_a_third_of_its_time_and_over_at_its_end() -> None:
    owning = Leading(MINE, 16.0)
    assert pause_s(owning, 10.0, LIMITS) == pytest.approx(2.0)
    assert pause_s(owning, 13.0, LIMITS) == 0.0
    assert at(owning, 15.99) is owning
    assert at(owning, 16.0) == Following(had=MINE)
    assert at(Following(THEIRS, 1.0, 2.0), 1e9) == Following(THEIRS, 1.0, 2.0)


@given(
    asked_s=st.floats(0, 100),
    travel_s=st.tuples(st.floats(0, 5), st.floats(0, 5), st.floats(0, 50)),
    offset_s=st.floats(-1e6, 1e6),
    ttl_s=st.floats(1, 60),
    margin_s=st.floats(0.1, 5),
)
def test_a_call_is_in_the_index_before_another_can_be_the_leader(
    asked_s: float, travel_s: tuple[float, float, float], offset_s: float, ttl_s: float, margin_s: float
) -> None:
    """The holder's clock is exact, the other process's clock is off by `offset_s`; the renewal is the
    holder's last one."""
    limits = LeaseLimits(ttl_s, margin_s)
    renewed_s = asked_s + travel_s[0]
    mine = after(Leading(replace(MINE, ttl_s=ttl_s), 1e9), RENEW, replace(MINE, ttl_s=ttl_s), asked_s=asked_s, now_s=asked_s, limits=limits)
    assert isinstance(mine, Leading)
    last_call_s = mine.until_s - margin_s - 1e-6
    assert may_begin(mine, last_call_s, limits)
    assert not may_begin(mine, last_call_s + 1e-3, limits)
    seen_s = renewed_s + travel_s[1] + offset_s
    theirs = after(NEW, LOOK, mine.lease, asked_s=seen_s - travel_s[1], now_s=seen_s, limits=limits)
    assert isinstance(theirs, Following)
    for now_s in (last_call_s + offset_s + 2 * margin_s - 1e-3, last_call_s + offset_s):
        assert next_request(replace(theirs, looked_s=now_s), now_s, limits) is LOOK
