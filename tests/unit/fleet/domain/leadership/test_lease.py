from __future__ import annotations

import pytest

from control_plane.fleet.domain.leadership.lease import next_token

_2026_S = 1_767_225_600.0


@pytest.mark.parametrize(
    ("highest", "wall_s", "expected"),
    [
        pytest.param(0, _2026_S + 500.9, 500, id="nothing seen: the seconds since 2026"),
        pytest.param(7, _2026_S + 500.0, 500, id="an older release counted from 1"),
        pytest.param(500, _2026_S + 500.0, 501, id="taken twice within a second"),
        pytest.param(900, _2026_S + 500.0, 901, id="the clock was put back"),
        pytest.param(0, 0.0, 1, id="a host without a clock"),
    ],
)
def test_a_token_is_above_the_highest_seen_and_no_less_than_the_time(highest: int, wall_s: float, expected: int) -> None:
    assert next_token(highest, wall_s) == expected
