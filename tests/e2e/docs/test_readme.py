"""The examples of the README and of the first tutorial, run as they stand there, print what these say that they print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.e2e import tidegate as servers
from tests.e2e.tidegate import LONG_S, PROJECT, Tidegate

README = (PROJECT / "README.md").read_text()
DOCUMENTS = (README, (PROJECT / "docs" / "tutorial" / "first-request.md").read_text())


@pytest.fixture(scope="module")
def as_in_the_readme(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tidegate]:
    """What `make serve` starts, with its defaults but for the ports."""
    running = servers.start(tmp_path_factory.mktemp("readme"))
    yield running
    running.kill()


def commands() -> list[tuple[str, str]]:
    """Commands after `$ `, each with what the document prints beneath it."""
    consoles = [block for document in DOCUMENTS for block in re.findall(r"^```console\n(.*?)^```", document, re.MULTILINE | re.DOTALL)]
    return [_command(part) for block in consoles for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]


def _command(text: str) -> tuple[str, str]:
    """A line that ends in a backslash, or within quotes, goes on in the next."""
    lines = text.splitlines()
    count = 1
    while lines[count - 1].endswith("\\") or "\n".join(lines[:count]).count("'") % 2:
        count += 1
    return "\n".join(lines[:count]), "\n".join(lines[count:]).strip()


def programs() -> list[tuple[str, str]]:
    """Python programs, each with the output that follows it."""
    form = r"^```python\n(.*?)^```\n\n```text\n(.*?)^```"
    return [found for document in DOCUMENTS for found in re.findall(form, document, re.MULTILINE | re.DOTALL)]


REAL_NUMBER = r"-?\d+\.\d*(?:e-?\d+)?"


def assert_same(shown: str, promised: str) -> None:
    """But for times, and for which variant another processor is served by, and what that makes of an embedding."""
    for varies, plainly in ((r"in [\d.]+ ms", "in N ms"), (r"\b(fp32|int8|bf16)\b", "VARIANT")):
        shown, promised = (re.sub(varies, plainly, text) for text in (shown, promised))
    assert _words(shown) == _words(promised)
    numbers = ([float(number) for number in re.findall(REAL_NUMBER, text)] for text in (shown, promised))
    np.testing.assert_allclose(*numbers, atol=0.02)


def _words(text: str) -> list[str]:
    # NumPy writes a last number that is 0.0 as `0.  ]`, and another one as `0.01]`.
    return re.sub(REAL_NUMBER, "R", text).replace("]", " ]").split()


def run(command: list[str], tidegate: Tidegate) -> str:
    environment = {**os.environ, "TIDEGATE_STATE_DIR": str(tidegate.state_dir), "COLUMNS": "120"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG_S, cwd=PROJECT, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("command", "output"), commands(), ids=[command[:40] for command, _ in commands()])
def test_commands(as_in_the_readme: Tidegate, command: str, output: str) -> None:
    actual = command.replace("localhost:8000", as_in_the_readme.address("http")).replace(".venv/bin/", "")
    assert_same(run(["bash", "-c", actual], as_in_the_readme), output)


@pytest.mark.parametrize(("program", "output"), programs())
def test_python_examples(as_in_the_readme: Tidegate, program: str, output: str) -> None:
    actual = program.replace("localhost:8000", as_in_the_readme.address("http"))
    assert_same(run([sys.executable, "-c", actual], as_in_the_readme), output)


def test_there_are_programs_and_commands_in_each_document() -> None:
    assert (len(commands()), len(programs())) == (6, 4)
