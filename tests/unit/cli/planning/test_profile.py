"""What `tidegate profile` prints, and what it refuses; tests/e2e/admin/test_cli.py has a whole run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from control_plane.cli.planning import profile as command
from control_plane.core.errors import InvalidRequest
from control_plane.profiling.profiler import Profile
from control_plane.profiling.stages import Stage

FOUND = Profile(
    protocol="HTTP",
    concurrency=1,
    requests=10,
    requests_per_s=99.96,
    total_ms=10.0,
    p50_ms=9.0,
    p99_ms=20.0,
    stages=[Stage("network and HTTP", 1.0, 0.5, 2.0), Stage("queue", 9.0)],
    server=None,
    computed=10,
    repeat_ms=None,
    client_busy=0.1,
)


def table(found: Profile, capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    command._print("m", found)
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_what_is_not_known_of_single_requests_is_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert table(FOUND, capsys) == [
        ["a", "request", "of", "m", "ms", "p50", "p99", "%"],
        ["network", "and", "HTTP", "1.00", "0.50", "2.00", "10"],
        ["queue", "9.00", "-", "-", "90"],
        ["all,", "at", "its", "client", "10.00", "9.00", "20.00", "100"],
        *[line.split() for line in ["1 caller, 100.0 requests a second; -: nobody knows it of single requests"]],
    ]


def test_the_time_at_the_server_and_of_a_repeat_follow(capsys: pytest.CaptureFixture[str]) -> None:
    found = replace(FOUND, server=Stage("in Triton", 4.0, 3.0, 5.0), repeat_ms=0.5, concurrency=3)
    lines = table(found, capsys)
    assert lines[4:6] == [["in", "Triton", "4.00", "3.00", "5.00", "40"], ["sent", "again:", "from", "the", "cache", "0.50", "-", "-", "5"]]
    assert lines[6][:4] == ["3", "callers", "at", "once,"]


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        pytest.param({}, None, id="nothing"),
        pytest.param({"computed": 14}, "others had 4 requests computed meanwhile", id="others ask"),
        pytest.param({"computed": 4}, "6 of 10 answers came from the cache", id="a cache"),
        pytest.param({"client_busy": 0.95}, None, id="one caller waits for nobody"),
        pytest.param({"client_busy": 0.95, "concurrency": 8}, "this command itself computed 95 % of the time", id="busy itself"),
        pytest.param({"client_busy": 0.5, "concurrency": 8}, None, id="idle itself"),
    ],
)
def test_what_keeps_figures_from_being_those_of_the_requests_is_told(changes: dict[str, Any], remark: str | None) -> None:
    remarks = list(command._remarks(replace(FOUND, **changes)))
    assert len(remarks) == (remark is not None)
    assert remark is None or remarks[0].startswith(remark)


def test_more_callers_than_requests_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="--requests 3 is less than --concurrency 4"):
        command.profile("m", requests=3, concurrency=4, url="http://127.0.0.1:1")
