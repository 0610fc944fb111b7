"""`tidegate fleet` against an admin API that answers what a test says."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.http_server import http_server
from tests.unit.cli.admin.fleet_answers import MODEL, SERVER
from tests.unit.cli.command import Tidegate

Show = Callable[..., list[list[str]]]

FLEET = {
    "is_leader": True,
    "notes": [],
    "servers": [
        SERVER,
        {**SERVER, "name": "triton-1", "is_up": False, "budget_bytes": None, "held_bytes": 0, "replicas": []},
    ],
    "models": [
        {**MODEL, "name": "broken", "tier": "warm", "servers": [], "quarantined_for_s": 7.6, "why_quarantined": "[red]no weights[/]\nAt"},
        {**MODEL, "min_replicas": 1},
    ],
    "events": [
        {"at_s": 1e9 + number, "kind": "failed", "model": f"old{number}", "server": "triton-0", "reason": reason, "seconds": 0.0}
        for number, reason in enumerate(["[red]no such file[/]\nTraceback", "", "last"])
    ],
}


@pytest.fixture
def url() -> Iterator[str]:
    with http_server(lambda asked: asked.answer(200, FLEET if asked.path == "/fleet" else {})) as url:
        yield url


@pytest.fixture
def show(tidegate: Tidegate, monkeypatch: pytest.MonkeyPatch, url: str) -> Show:
    """Split the output into lines of words."""
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: str) -> list[list[str]]:
        told = tidegate("fleet", "--admin-url", url, *arguments)
        assert not told.status, told
        return told.table

    return call


def test_servers_models_and_events(show: Show) -> None:
    shown = show()
    at = shown.index(["triton-0", "up", "30", "MiB", "of", "50", "MiB"])
    assert shown[at + 1 : at + 4] == [["m0"], ["triton-1", "down", "0", "MiB", "of", "no", "bound"], ["nothing"]]
    assert ["m0", "hot", "1", "(1+)", "30", "MiB", "1.2", "s", "0.50"] in shown
    assert ["broken", "warm", "0", "30", "MiB", "1.2", "s", "0.50"] in shown
    assert ["broken", "is", "quarantined", "for", "8", "s:", "[red]no", "weights[/]"] in shown


def test_what_models_say_is_no_markup_and_one_line(show: Show) -> None:
    (line,) = [line for line in show() if "old0" in line]
    assert line[1:] == ["failed", "old0", "on", "triton-0:", "[red]no", "such", "file[/]"]


@pytest.mark.parametrize(("count", "seen"), [("0", []), ("1", ["old2"]), ("3", ["old0", "old1", "old2"])])
def test_as_many_events_as_are_asked_for(show: Show, count: str, seen: list[str]) -> None:
    assert [word for line in show("--events", count) for word in line if word.startswith("old")] == seen


def test_watching_ends_with_an_interrupt(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("control_plane.cli.admin.fleet.time.sleep", sleep)
    shown = show("--watch", "--every-s", "0.5")
    assert looks == [0.5, 0.5, 0.5]
    assert any("triton-0" in line for line in shown)
