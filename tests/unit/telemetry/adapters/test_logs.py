from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any, Literal

import pytest

from control_plane.telemetry.adapters.logs import configure_logging


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("control_plane")
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:], root.level, ours.level = before


def written(capsys: pytest.CaptureFixture[str], style: Literal["console", "json"], level: int, text: str, *args: Any, **kwargs: Any) -> str:
    configure_logging(style)
    logging.getLogger("control_plane.services.x").log(level, text, *args, **kwargs)
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_json_is_one_object_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    text = written(capsys, "json", logging.INFO, "model %s\nready", "a", extra={"model": "a", "path": object})
    assert text.count("\n") == 1
    line = json.loads(text)
    assert (line["level"], line["logger"], line["message"], line["model"]) == ("info", "control_plane.services.x", "model a\nready", "a")
    assert line.keys() == {"time", "level", "logger", "message", "model", "path"}


def test_json_holds_the_exception(capsys: pytest.CaptureFixture[str]) -> None:
    text = written(capsys, "json", logging.ERROR, "failed", exc_info=ValueError("why"))
    assert text.count("\n") == 1
    assert "ValueError: why" in json.loads(text)["exception"]


def test_console_shows_the_extras(capsys: pytest.CaptureFixture[str]) -> None:
    text = written(capsys, "console", logging.WARNING, "not loaded", extra={"model": "a"})
    assert text.endswith("WARNING not loaded model=a\n")


@pytest.mark.parametrize(
    ("logger", "level", "shown"),
    [
        ("control_plane.app.gateway.application", logging.INFO, True),
        ("control_plane.app.gateway.application", logging.DEBUG, False),
        ("httpx", logging.INFO, False),
        ("httpx", logging.WARNING, True),
    ],
)
def test_ours_from_info_on_and_others_from_warning_on(capsys: pytest.CaptureFixture[str], logger: str, level: int, shown: bool) -> None:
    configure_logging("console")
    logging.getLogger(logger).log(level, "hello")
    assert ("hello" in capsys.readouterr().err) is shown


def test_configuring_twice_writes_once(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("console")
    assert written(capsys, "console", logging.INFO, "hello").count("hello") == 1
