from __future__ import annotations

import pytest

from control_plane.admission.domain.recent_turns import RecentTurns


def recent(turns: str, **weights: float) -> RecentTurns:
    """Turns of one unit each, of the tenants that these letters name."""
    made = RecentTurns()
    for tenant in turns:
        made.served(tenant, weights.get(tenant, 1.0), 1.0)
    return made


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        pytest.param("", 1.0, id="nobody yet"),
        pytest.param("a" * 10, 1.0, id="it alone"),
        pytest.param("b" * 300, 0.5, id="who is new gets its share by weight"),
        pytest.param("ab" * 150, 0.5, id="turns"),
        pytest.param("abc" * 100, 1 / 3, id="of three"),
        pytest.param("aaab" * 75, 0.75, id="more than its share, as the other asks for less"),
        pytest.param("bbba" * 75, 0.5, id="less than its share, as it asked for less"),
        pytest.param("b" * 300 + "a" * 50, 1.0, id="another that has left"),
    ],
)
def test_least_share(turns: str, expected: float) -> None:
    assert recent(turns).least_share("a", 1.0) == pytest.approx(expected, rel=0.03)


def test_the_share_of_who_got_nothing_is_by_weight() -> None:
    assert recent("bc" * 50, b=2.0, c=5.0).least_share("a", 3.0) == pytest.approx(0.3)


def test_a_weight_that_changes_counts_as_it_is_now() -> None:
    turns = recent("b" * 10, b=9.0)
    turns.served("b", 1.0, 1.0)
    assert turns.least_share("a", 1.0) == pytest.approx(0.5)


def test_tenants_that_come_once_leave_nothing_behind() -> None:
    turns = RecentTurns()
    for number in range(2000):
        turns.served(f"visitor {number}", 1.0, 1.0)
    assert len(turns._got) <= 50
    assert turns.least_share("a", 1.0) == pytest.approx(1 / 51)
