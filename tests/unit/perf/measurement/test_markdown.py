"""Figures have as many digits as can be read."""

from __future__ import annotations

import pytest

from perf.measurement.markdown import figure, table


@pytest.mark.parametrize(
    ("value", "text"), [(0.123, "0.12"), (1.5, "1.50"), (12.34, "12.3"), (1234.5, "1,234"), (-15.0, "-15.0"), (float("nan"), "")]
)
def test_figure(value: float, text: str) -> None:
    assert figure(value) == text


def test_table() -> None:
    assert table(("a", "b"), [("1", "2")]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
