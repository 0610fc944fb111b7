"""`tidegate events` and `tidegate top` against the admin API on a real port."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from control_plane.admin.events.lines import parsed_events
from control_plane.metering.domain.usage import Usage, UsageBatch, UsageKey
from tests.aio import run
from tests.unit.admin.admin_bench import Bench
from tests.unit.cli.command import Tidegate
from tests.wire.admin.admin import admin_server

TIDEGATE = Path(sys.executable).with_name("tidegate")


@pytest.fixture
def served() -> Iterator[tuple[Bench, str]]:
    bench = Bench()
    with admin_server(bench) as url:
        bench.publish("model.loaded", model="a", reason="", seconds=1.394489408005029)
        bench.publish("model.failed", model="b", reason="bad\x1b[31m weights")
        yield bench, url


def test_what_has_happened_lately(tidegate: Tidegate, served: tuple[Bench, str]) -> None:
    ended = tidegate("events", "--admin-url", served[1])
    assert ended.status == 0
    assert [line.split()[2:] for line in ended.out.splitlines()[1:]] == [
        ["model.loaded", "model=a", "seconds=1.394"],
        ["model.failed", "model=b", "reason=bad", "[31m", "weights"],
    ]
    found = json.loads(tidegate("events", "-o", "json", "--admin-url", served[1]).out)
    assert [(each["kind"], each["model"]) for each in found] == [("model.loaded", "a"), ("model.failed", "b")]


def test_following_prints_each_event_once_as_it_happens(served: tuple[Bench, str], tmp_path: Path) -> None:
    bench, url = served
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    command = [TIDEGATE, "events", "--follow", "-o", "json", "--admin-url", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        kinds = [json.loads(process.stdout.readline())["kind"] for _ in range(2)]
        bench.publish("rollout.canary", route="r")
        kinds.append(json.loads(process.stdout.readline())["kind"])
        process.terminate()
    assert kinds == ["model.loaded", "model.failed", "rollout.canary"]


def test_nobody_there_is_said_at_once(tidegate: Tidegate) -> None:
    ended = tidegate("events", "--follow", "--admin-url", "http://127.0.0.1:1")
    assert (ended.status, "has broken off" in ended.err) == (1, True)


def test_top_once_shows_models_and_events_without_a_fleet(tidegate: Tidegate, served: tuple[Bench, str]) -> None:
    ended = tidegate("top", "--once", "--admin-url", served[1])
    assert (ended.status, ended.err) == (0, "")
    lines = [line.split() for line in ended.out.splitlines()]
    assert lines[1:3] == [["a", "READY"], ["b", "UNAVAILABLE"]]
    assert any("model.loaded" in line for line in lines)
    assert "\x1b[31m weights" not in ended.out
    found = json.loads(tidegate("top", "--once", "-o", "json", "--admin-url", served[1]).out)
    assert (found["servers"], found["models"][0]) == ([], {"name": "a", "state": "READY"})
    assert tidegate("top", "-o", "json", "--admin-url", served[1]).status == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (":\n\nretry: 2000\n\n", []),
        ("id: 7\nevent: e\ndata: {}\n\n", [{"id": "7", "event": "e", "data": {}}]),
        ('data:{"a": "x: y"}\n\ndata: 1', [{"event": "message", "data": {"a": "x: y"}}]),
    ],
)
def test_lines_are_parsed_as_the_standard_says(text: str, expected: list[object]) -> None:
    assert list(parsed_events(text.split("\n"))) == expected


def test_a_stream_is_printed_as_cloud_events(tidegate: Tidegate, served: tuple[Bench, str]) -> None:
    bench, url = served
    run(bench.usage.add(UsageBatch("b", ((UsageKey("2026-01-01", "acme", "m"), Usage(requests=2)),))))
    shown = tidegate("events", "--stream", "usage", "--admin-url", url).out.splitlines()[1]
    assert shown.split()[2:] == ["usage.recorded.v1", "day=2026-01-01", "tenant=acme", "model=m", "requests=2"]
    (event,) = json.loads(tidegate("events", "--stream", "usage", "-o", "json", "--admin-url", url).out)
    assert (event["specversion"], event["id"], event["subject"]) == ("1.0", "b/0", "acme")
    assert "kind=tenant" not in tidegate("events", "--stream", "audit", "--admin-url", url).out
    assert tidegate("events", "--stream", "secrets", "--admin-url", url).status == 2
