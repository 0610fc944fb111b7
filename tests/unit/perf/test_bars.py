"""Every value has its bar, at its group's place, and its words."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from perf.bars import compact, draw_bars

COLOURS = {"a": "#000000", "b": "#111111", "never": "#222222"}


def test_bars_stand_at_their_groups_and_leave_out_what_is_missing() -> None:
    axis = Figure().subplots()
    draw_bars(axis, {("x", "a"): 10.0, ("x", "b"): 20.0, ("y", "b"): 2000.0}, ["x", "y"], COLOURS)
    bars = {round(bar.get_x() + bar.get_width() / 2, 2): bar.get_height() for bar in axis.patches}
    assert bars == {-0.22: 10.0, 0.22: 20.0, 1.22: 2000.0}
    assert [text.get_text() for text in axis.texts] == ["10", "20", "2k"]
    assert [label.get_text() for label in axis.get_xticklabels()] == ["x", "y"]


@pytest.mark.parametrize(("value", "text"), [(0.123, "0.123"), (12.34, "12.3"), (1234.0, "1.23k"), (13300.0, "13.3k")])
def test_compact(value: float, text: str) -> None:
    assert compact(value) == text
