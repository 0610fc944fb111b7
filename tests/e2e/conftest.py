"""One `tidegate serve` for the whole session, with the project's models and the tests' own; nothing is left of it after."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e import tidegate as servers
from tests.e2e.tidegate import PROJECT, Tidegate, descendants, living

Start = Callable[..., Tidegate]
MODELS = Path(__file__).parent / "models"


@pytest.fixture(scope="session")
def tidegate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tidegate]:
    repositories = [PROJECT / "model_repository", PROJECT / "ensembles", MODELS]
    flags = [part for path in repositories for part in ("--model-repository", str(path))]
    loads = [part for name in ("text_embedding", "echo", "slow") for part in ("--load", name)]
    running = servers.start(tmp_path_factory.mktemp("tidegate"), *flags, servers.COMPLETE, *loads)
    below = descendants(running.process.pid)
    yield running
    assert running.stop() == 0, running.said()
    assert not living(below), "processes outlived tidegate"


@pytest.fixture
def start() -> Iterator[Start]:
    """`servers.start` for a test that starts its own; those that it leaves running are killed."""
    started: list[Tidegate] = []

    def start_one(state_dir: Path, *arguments: str, open_files: int | None = None, python: str = sys.executable) -> Tidegate:
        started.append(servers.start(state_dir, *arguments, open_files=open_files, python=python))
        return started[-1]

    yield start_one
    for running in started:
        running.kill()
