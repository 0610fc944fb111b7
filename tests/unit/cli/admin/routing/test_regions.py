"""`tidegate regions` against an admin API that answers what a test says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.http_server import http_server
from tests.unit.cli.command import Tidegate

FAR = {
    "name": "us",
    "address": "us.example:443",
    "is_well": True,
    "reason": "",
    "round_trip_ms": 81.2,
    "full_for_s": 0.4,
    "sent": 9,
    "answered": 7,
    "refused": 2,
}
AWAY = FAR | {"name": "ap", "is_well": False, "reason": "it says nothing", "round_trip_ms": None, "full_for_s": 0.0}


@pytest.fixture
def url() -> Iterator[str]:
    with http_server(lambda asked: asked.answer(200, [FAR, AWAY] if asked.path == "/regions" else [])) as url:
        yield url


def test_each_region_has_a_line(url: str, tidegate: Tidegate) -> None:
    ended = tidegate("regions", "--admin-url", url)
    assert ended.status == 0
    lines = [line.split() for line in ended.out.splitlines()]
    assert lines[1:] == [
        ["us", "us.example:443", "yes", "81.2", "ms", "0.4", "s", "9", "7", "2"],
        ["ap", "us.example:443", "no", "9", "7", "2", "it", "says", "nothing"],
    ]
