"""Exit statuses as docs/reference/cli.md has them, and shell completion."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.http_server import http_server
from tests.unit.cli.command import Tidegate

NOWHERE = ("--admin-url", "http://127.0.0.1:1")
TIDEGATE = Path(sys.executable).with_name("tidegate")


@pytest.mark.parametrize(
    ("line", "status"),
    [
        pytest.param(("--help",), 0, id="done"),
        pytest.param(("--version",), 0, id="the version"),
        pytest.param(("models", "list", *NOWHERE), 1, id="nobody answers"),
        pytest.param(("keys", "create", "--tenant", "t", "--scope", "root", *NOWHERE), 1, id="refused"),
        pytest.param(("models", "lst"), 2, id="no such command"),
        pytest.param(("models", "list", "--nope"), 2, id="no such option"),
        pytest.param(("models", "list", "-o", "xml"), 2, id="a value that an option does not take"),
        pytest.param(("get",), 2, id="an argument is missing"),
        pytest.param(("diff", "-f", "none.yaml", *NOWHERE), 2, id="a difference that cannot be told"),
    ],
)
def test_exit_status(tidegate: Tidegate, line: tuple[str, ...], status: int) -> None:
    assert tidegate(*line).status == status


@pytest.fixture
def hostile() -> Iterator[str]:
    """Address of an admin API whose errors quote what a model's code has raised."""
    error = {"error": "load failed: \x1b]0;owned\x07\x1b[2J\x9b31m\nat line 1 [of 2]"}
    with http_server(lambda asked: asked.answer(422, error)) as url:
        yield url


def test_an_error_sends_no_escape_codes_to_the_terminal(tidegate: Tidegate, hostile: str) -> None:
    told = tidegate("models", "load", "bad", "--admin-url", hostile)
    assert told.status == 1
    assert told.err.splitlines() == ["error: load failed:  ]0;owned  [2J 31m", "at line 1 [of 2] (HTTP 422)"]


def completed(tmp_path: Path, **asked: str) -> str:
    ended = subprocess.run([TIDEGATE], env={**os.environ, "HOME": str(tmp_path), **asked}, capture_output=True, text=True, timeout=60)
    return ended.stdout


COMPLETED = [("tidegate mod", "models"), ("tidegate rollouts wa", "watch"), ("tidegate top --on", "--once")]


@pytest.mark.parametrize(("words", "expected"), COMPLETED)
def test_bash_completes_commands_and_options(tmp_path: Path, words: str, expected: str) -> None:
    found = completed(tmp_path, _TIDEGATE_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(words.count(" ")))
    assert expected in found.split()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(tmp_path: Path, shell: str) -> None:
    assert f"complete_{shell}" in completed(tmp_path, _TIDEGATE_COMPLETE=f"source_{shell}")
