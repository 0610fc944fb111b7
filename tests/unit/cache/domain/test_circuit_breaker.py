from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.cache.domain.circuit_breaker import BreakerLimits, CircuitBreaker

LIMITS = BreakerLimits(failures=5, successes=3, first_pause_s=0.1, max_pause_s=5.0, settled_after_s=10.0)


def after(outcomes: str, breaker: CircuitBreaker | None = None, *, now_s: float = 0.0) -> CircuitBreaker:
    """`.` succeeded, `x` failed, `X` was away."""
    breaker = breaker or CircuitBreaker(LIMITS)
    for outcome in outcomes:
        if outcome == ".":
            breaker.succeeded(now_s)
        else:
            breaker.failed(now_s, is_away=outcome == "X")
    return breaker


@pytest.mark.parametrize(
    ("outcomes", "is_open"),
    [
        pytest.param("", False, id="at first"),
        pytest.param("xxxx", False, id="a few failures"),
        pytest.param("xxxxx", True, id="one more"),
        pytest.param("X", True, id="away once"),
        pytest.param("." * 1000 + "xxxxx", True, id="what was long ago earns nothing"),
        pytest.param("xxxx" + "." * 8 + "xxxx", False, id="successes make up for failures"),
        pytest.param("xx.xx.x", False, id="two of three fail, for now"),
        pytest.param("xx.xx.xx", True, id="two of three fail"),
        pytest.param("x." * 7 + "x", False, id="every second fails, for now"),
        pytest.param("x." * 8 + "x", True, id="every second fails"),
        pytest.param("x.." * 100, False, id="every third fails"),
        pytest.param("X..", True, id="two trials"),
        pytest.param("X...", False, id="three trials"),
        pytest.param("X..x..", True, id="three trials, not in a row"),
        pytest.param("X...xxxx", False, id="what led to it is forgotten"),
    ],
)
def test_when_it_is_open(outcomes: str, is_open: bool) -> None:
    assert after(outcomes).is_open is is_open


@pytest.mark.parametrize(
    ("outcomes", "pause_s"),
    [
        pytest.param("xxxx", 0.0, id="closed"),
        pytest.param("X", 0.1, id="the first"),
        pytest.param("Xx", 0.2, id="doubles"),
        pytest.param("Xxxxx", 1.6, id="again and again"),
        pytest.param("X" * 1000, 5.0, id="up to the longest"),
        pytest.param("Xxxxx.", 0.1, id="short once a trial succeeds"),
        pytest.param("Xxxxx.x", 3.2, id="which is not the end of it"),
        pytest.param("Xxxxx...", 0.0, id="closed again"),
    ],
)
def test_how_long_it_waits(outcomes: str, pause_s: float) -> None:
    assert after(outcomes).pause_s == pytest.approx(pause_s)


@pytest.mark.parametrize(("later_s", "pause_s"), [(9.9, 3.2), (10.0, 0.1)])
def test_one_that_opens_soon_again_waits_longer_than_before(later_s: float, pause_s: float) -> None:
    breaker = after("Xxxxx...")
    assert after("X", breaker, now_s=later_s).pause_s == pytest.approx(pause_s)


@given(outcomes=st.text(alphabet=".xX", max_size=200))
def test_whatever_happens_it_waits_within_bounds_and_some_successes_close_it(outcomes: str) -> None:
    breaker = after(outcomes)
    assert 0.1 <= breaker.pause_s <= 5.0 if breaker.is_open else breaker.pause_s == 0.0
    assert not after("...", breaker).is_open
