"""Times that answers tell."""

from __future__ import annotations

from math import isfinite

import pytest
from hypothesis import given
from hypothesis.strategies import dictionaries, floats, from_regex, text

from control_plane.protocols.server_timing import read_timing, write_timing


def test_what_is_written_is_read() -> None:
    text = write_timing({"total": 12.3456, "wait": 0.0, "server": -1e-9}, "miss")
    assert text == "total;dur=12.346, wait;dur=0.000, server;dur=0.000, cache;desc=miss"
    assert read_timing(text) == {"total": 12.346, "wait": 0.0, "server": 0.0}
    assert write_timing({"total": 1.0}) == "total;dur=1.000"


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("", {}),
        ("cache;desc=hit, ;dur=1, total", {}),
        ("total;dur=-1, wait;dur=nan, server;dur=1e3", {}),
        ('db;desc="a, b";dur=2, total;dur=3', {"total": 3.0}),
        ("x" * 10_000 + ";dur=" + "9" * 10_000, {}),
    ],
)
def test_what_others_write_is_left_out(text: str, read: dict[str, float]) -> None:
    assert read_timing(text) == read


@given(dictionaries(from_regex("[a-z]{1,9}", fullmatch=True), floats(min_value=0, max_value=1e9), max_size=5))
def test_any_durations_come_back_to_the_microsecond(durations_ms: dict[str, float]) -> None:
    assert read_timing(write_timing(durations_ms)) == pytest.approx(durations_ms, abs=1e-3)


@given(text())
def test_any_text_can_be_read(said: str) -> None:
    assert all(isfinite(each) and each >= 0 for each in read_timing(said).values())
