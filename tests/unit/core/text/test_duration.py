from __future__ import annotations

import pytest

from control_plane.core.errors import InvalidRequest
from control_plane.core.text.duration import parse_duration_s


@pytest.mark.parametrize(
    ("text", "seconds"), [("0s", 0), ("30s", 30), ("15m", 900), ("24h", 86_400), ("90d", 7_776_000), ("007d", 604_800)]
)
def test_read_as(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "d", "90", "-1d", "1.5h", "1 d", "1d ", "1D", "1w", "1d12h", "9" * 10 + "d", "\u0661d"])
def test_anything_else_is_refused_and_repeated(text: str) -> None:
    with pytest.raises(InvalidRequest, match="expected a number and a unit") as raised:
        parse_duration_s(text)
    assert repr(text) in str(raised.value)
