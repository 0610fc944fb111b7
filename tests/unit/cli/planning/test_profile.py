"""What `tidegate profile` prints, and what it refuses; tests/e2e/admin/test_cli.py has a whole run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from control_plane.cli.planning import profile as command
from control_plane.cli.planning.profile_report import print_profile, remarks_on
from control_plane.core.errors import InvalidRequest
from control_plane.profiling.profiler import Profile
from control_plane.profiling.stages import Stage
from control_plane.profiling.streams import StreamProfile

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


STREAMED = StreamProfile(
    protocol="gRPC",
    concurrency=2,
    requests=4,
    requests_per_s=0.5,
    stages=[Stage("network, gRPC, gateway, and the model", 3.0), Stage("queue", 1.0)],
    first=Stage("first response, at its client", 4.0, 3.5, 5.0),
    following=Stage("each further response", 2.0, 1.5, 2.5),
    whole=Stage("the whole answer", 12.0, 11.0, 13.0),
    responses=20,
    tokens=30,
    computed=4,
    client_busy=0.1,
)


def table(found: Profile | StreamProfile, capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    print_profile("m", found)
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
    remarks = list(remarks_on(replace(FOUND, **changes)))
    assert len(remarks) == (remark is not None)
    assert remark is None or remarks[0].startswith(remark)


def test_of_streams_the_parts_are_those_of_the_first_response(capsys: pytest.CaptureFixture[str]) -> None:
    lines = table(STREAMED, capsys)
    assert lines[0] == ["the", "first", "response", "of", "m", "ms", "p50", "p99", "%"]
    assert [line[-4:] for line in lines[1:4]] == [["3.00", "-", "-", "75"], ["1.00", "-", "-", "25"], ["4.00", "3.50", "5.00", "100"]]
    assert [line[-3:] for line in lines[4:6]] == [["2.00", "1.50", "2.50"], ["12.00", "11.00", "13.00"]]
    assert " ".join(lines[6]).startswith("2 callers at once, 0.5 requests a second, 5.0 responses and 7.5 tokens in each answer; -")


def test_what_a_model_does_not_count_or_do_is_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    lines = table(replace(STREAMED, tokens=None, following=None), capsys)
    assert len(lines) == 6
    assert "5.0 responses and tokens uncounted by the model in each answer" in " ".join(lines[5])


@pytest.mark.parametrize(
    ("asked", "concurrency", "usual", "count"),
    [
        pytest.param(None, 1, command._REQUESTS, 200, id="as usual"),
        pytest.param(None, 64, command._REQUESTS, 640, id="enough for each caller"),
        pytest.param(None, 64, command._STREAMS, 128, id="enough streams for each caller"),
        pytest.param(7, 7, command._REQUESTS, 7, id="as asked"),
    ],
)
def test_how_many_are_sent(asked: int | None, concurrency: int, usual: command._Usual, count: int) -> None:
    assert command._count(asked, concurrency, usual) == count


@pytest.mark.parametrize(
    ("asked", "concurrency", "usual", "said"),
    [
        pytest.param(3, 4, command._REQUESTS, "--requests 3 is less than --concurrency 4", id="not one for each caller"),
        pytest.param(1001, 4, command._STREAMS, "--requests 1001: .* at most 1000", id="too many streams"),
    ],
)
def test_how_many_are_not_sent(asked: int, concurrency: int, usual: command._Usual, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        command._count(asked, concurrency, usual)
