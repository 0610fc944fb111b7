"""What a token lease decides at each step; `tests/unit/admission/test_rate_leases` tests several of them
together.
"""

from __future__ import annotations

import pytest

from control_plane.admission.domain.rate_lease import (
    LeaseDecision,
    TokenLease,
    debt_s,
    decide,
    drawn,
    idle_tokens,
    is_low,
    max_ahead,
    wanted,
)

NOW_S = 1024.0
RATE, BURST = 100.0, 100.0


def take_at(lease: TokenLease, now_s: float = NOW_S, *, rate: float = RATE, burst: float = BURST) -> LeaseDecision:
    return decide(lease, rate, burst, 2, now_s)


def told(lease: TokenLease, granted: int, wanted_: int, *, debt: float, spent: int = 0, rate: float = RATE, burst: float = BURST) -> None:
    drawn(lease, granted=granted, wanted=wanted_, told=spent, debt_s=debt, rate=rate, burst=burst, now_s=NOW_S)


@pytest.mark.parametrize(
    ("burst", "processes", "most"),
    [
        pytest.param(100.0, 1, 25, id="a quarter"),
        pytest.param(100.0, 4, 6, id="of all together"),
        pytest.param(3.0, 2, 0, id="of a small one nothing"),
        pytest.param(8.0, 0, 2, id="before it is known how many there are"),
    ],
)
def test_how_many_tokens_a_process_may_hold_or_owe(burst: float, processes: int, most: int) -> None:
    assert max_ahead(burst, processes) == most


def test_of_a_bucket_that_was_not_empty_some_are_used_unasked_and_then_it_is_asked() -> None:
    lease = TokenLease()
    takings = [take_at(lease) for _ in range(14)]
    assert takings == [LeaseDecision.ADMITTED] * 12 + [LeaseDecision.ASK] * 2
    assert (lease.unreported, is_low(lease, NOW_S)) == (12, True)
    told(lease, 2, 2, debt=0.14, spent=12)
    assert [take_at(lease) for _ in range(3)] == [LeaseDecision.ADMITTED] * 3
    assert (lease.tokens, lease.unreported) == (0, 1)


def test_of_a_bucket_that_was_half_empty_none_is_used_unasked_until_it_has_filled() -> None:
    lease = TokenLease()
    told(lease, 0, 0, debt=0.8)
    assert take_at(lease) is LeaseDecision.ASK
    assert take_at(lease, NOW_S + 0.29) is LeaseDecision.ASK
    assert take_at(lease, NOW_S + 0.31) is LeaseDecision.ADMITTED


def test_what_is_known_to_be_empty_is_not_asked_before_it_has_a_token() -> None:
    lease = TokenLease()
    told(lease, 0, 1, debt=10.0 / 3, rate=0.3, burst=1.0)
    asked = [take_at(lease, NOW_S + s, rate=0.3, burst=1.0) for s in (0.0, 3.3, 3.4)]
    assert asked == [LeaseDecision.REFUSED, LeaseDecision.REFUSED, LeaseDecision.ASK]


def test_a_high_rate_is_asked_for_several_at_a_time() -> None:
    lease = TokenLease()
    told(lease, 0, 1, debt=1.0)
    assert lease.next_token_s == pytest.approx(NOW_S + 0.01)
    assert [take_at(lease, NOW_S + s) for s in (0.011, 0.019, 0.021)] == [LeaseDecision.REFUSED, LeaseDecision.REFUSED, LeaseDecision.ASK]


def test_so_many_are_drawn_ahead_as_came_in_a_tenth_of_a_second() -> None:
    lease = TokenLease(counted_s=NOW_S)
    for _ in range(40):
        take_at(lease)
    assert wanted(lease, burst=1000.0, processes=2, now_s=NOW_S + 0.25) == 16
    assert wanted(lease, burst=1000.0, processes=2, now_s=NOW_S + 0.3) == 16, "counted anew after as long"
    assert wanted(lease, burst=100.0, processes=2, now_s=NOW_S + 0.3) == 12, "and not too many"
    lease.tokens = 50
    assert wanted(lease, burst=100.0, processes=2, now_s=NOW_S + 0.3) == 0


def test_what_nobody_wants_is_idle() -> None:
    lease = TokenLease(tokens=3)
    take_at(lease)
    assert (idle_tokens(lease, NOW_S + 0.4), idle_tokens(lease, NOW_S + 0.6)) == (0, 2)


def test_what_is_left_counts_what_is_held_and_owed() -> None:
    lease = TokenLease(tokens=10, unreported=0)
    told(lease, 0, 0, debt=0.5)
    assert debt_s(lease, rate=RATE, now_s=NOW_S + 0.1) == pytest.approx(0.3)
    lease.tokens, lease.unreported = 0, 10
    assert debt_s(lease, rate=RATE, now_s=NOW_S + 0.1) == pytest.approx(0.5)
    assert debt_s(TokenLease(tokens=10), rate=RATE, now_s=NOW_S) == 0.0
