"""The README's examples, run as they stand there, print what the README says they print."""

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


@pytest.fixture(scope="module")
def as_in_the_readme(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tidegate]:
    """What `make serve` starts, with its defaults but for the ports."""
    running = servers.start(tmp_path_factory.mktemp("readme"))
    yield running
    assert running.stop() == 0


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def examples() -> list[tuple[str, str]]:
    """Commands after `$ `, each with what the README prints beneath it."""
    found = []
    for block in blocks("console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output.strip()))
    return found


REAL_NUMBER = r"-?\d+\.\d*(?:e-?\d+)?"


def assert_same(shown: str, promised: str) -> None:
    """But for times, and for which variant another processor is served by, and what that makes of an embedding."""
    for varies, plainly in ((r"in [\d.]+ ms", "in N ms"), (r"\b(fp32|int8|bf16)\b", "VARIANT")):
        shown, promised = (re.sub(varies, plainly, text) for text in (shown, promised))
    assert _words(shown) == _words(promised)
    numbers = ([float(number) for number in re.findall(REAL_NUMBER, text)] for text in (shown, promised))
    np.testing.assert_allclose(*numbers, atol=0.02)


def _words(text: str) -> list[str]:
    return re.sub(REAL_NUMBER, "R", text).split()


def run(command: list[str], tidegate: Tidegate) -> str:
    environment = {**os.environ, "TIDEGATE_STATE_DIR": str(tidegate.state_dir), "COLUMNS": "120"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG_S, cwd=PROJECT, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("command", "output"), examples(), ids=[command[:40] for command, _ in examples()])
def test_commands(as_in_the_readme: Tidegate, command: str, output: str) -> None:
    actual = command.replace("localhost:8000", as_in_the_readme.address("http")).replace(".venv/bin/", "")
    assert_same(run(["bash", "-c", actual], as_in_the_readme), output)


@pytest.mark.parametrize(("program", "output"), [*zip(blocks("python"), blocks("text")[1:], strict=True)])
def test_python_examples(as_in_the_readme: Tidegate, program: str, output: str) -> None:
    actual = program.replace("localhost:8000", as_in_the_readme.address("http"))
    assert_same(run([sys.executable, "-c", actual], as_in_the_readme), output)


def test_every_make_target_is_real() -> None:
    named = set(re.findall(r"make ([a-z-]+)(?= |`|\n)", README)) - {"sure"}
    targets = set(re.findall(r"^([a-z-]+):.*## ", (PROJECT / "Makefile").read_text(), re.MULTILINE))
    assert named <= targets
