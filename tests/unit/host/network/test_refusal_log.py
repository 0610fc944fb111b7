"""Lines of the log about connections that a listener refuses: bounded, and the rest is counted."""

from __future__ import annotations

import pytest

from control_plane.host.network.refusal_log import RefusalLog


def test_a_flood_has_ten_lines_a_minute_and_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    log = RefusalLog()
    for number in range(1000):
        log.refused(f"10.0.0.1:{number}", "wrong secret", 100.0 + number / 20)
    said = [each.getMessage() for each in caplog.records]
    assert said == [f"a connection from 10.0.0.1:{number} is refused: wrong secret" for number in range(10)]
    log.refused("10.0.0.2:1", "too old", 200.0)
    said = [each.getMessage() for each in caplog.records[10:]]
    assert said == [
        "990 more connections were refused in the minute after the first of these",
        "a connection from 10.0.0.2:1 is refused: too old",
    ]


def test_a_few_are_all_told_of(caplog: pytest.LogCaptureFixture) -> None:
    log = RefusalLog()
    for number in range(30):
        log.refused("10.0.0.1:5", "wrong secret", 10.0 * number)
    assert len(caplog.records) == 30
    assert "more" not in caplog.text
