"""What the log says of connections that a listener could not accept."""

from __future__ import annotations

import errno
import os

import pytest

from control_plane.host.network.accept_failures import AcceptFailures

FULL = OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_there_is_a_line_when_it_begins_and_one_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    failures = AcceptFailures()
    failures.accepted(0.0)
    for number in range(600):
        failures.failed(FULL, 100.0 + number / 10)
    failures.accepted(165.0)  # by turns with failures
    failures.failed(FULL, 166.0)
    failures.accepted(177.0)
    failures.accepted(200.0)
    assert [each.getMessage() for each in caplog.records] == [
        "connections cannot be accepted, and wait: [Errno 24] Too many open files",
        "connections are accepted again: 601 accepts had failed in 66 s",
    ]


def test_what_begins_anew_is_told_anew_though_nobody_came_in_between(caplog: pytest.LogCaptureFixture) -> None:
    failures = AcceptFailures()
    for now_s in (0.0, 1.0, 60.0):
        failures.failed(FULL, now_s)
    failures.accepted(100.0)
    assert [each.getMessage()[:29] for each in caplog.records] == ["connections cannot be accepte"] * 2 + ["connections are accepted agai"]
    assert "1 accepts had failed in 0 s" in caplog.text
