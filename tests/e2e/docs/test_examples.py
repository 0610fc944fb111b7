"""The commands of every README in examples/, run as they stand there, print what the README says that they print.

All examples but the fleet share one `tidegate serve`, which has the flags of all of their READMEs.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from control_plane.admin.client import AdminClient
from control_plane.core.errors import InvalidRequest
from tests.e2e import tidegate as servers
from tests.e2e.docs.consoles import Command, commands_in, require_same
from tests.e2e.tidegate import COMPLETE, LONG_S, PROJECT, Tidegate, descendants, living, run_cli

EXAMPLES = PROJECT / "examples"
READMES = {path.parent.name: path.read_text() for path in sorted(EXAMPLES.glob("*/README.md"))}
FLEET = "fleet_of_three"
SHARING = [name for name in READMES if name != FLEET]
MADE = shutil.ignore_patterns("env", "__pycache__", "vocabulary.txt", "*.onnx", "*.pt", "*.joblib", "store_*")
"""What a run of the examples has left in the project itself."""

NO_INDEX = "(from versions: none)"
"""What pip says of a package where it reaches no index."""

PROJECTS_OWN = ["--model-repository", str(PROJECT / "model_repository"), "--model-repository", str(PROJECT / "ensembles")]
"""What is served where no repository is named."""


@dataclass(frozen=True)
class Example:
    """One README's commands: those before its server starts, that server's flags, and those that follow."""

    before: list[Command]
    flags: list[str]
    after: list[Command]


def example(name: str) -> Example:
    commands = commands_in(READMES[name])
    (place,) = [number for number, command in enumerate(commands) if "tidegate serve" in command.line]
    flags = shlex.split(commands[place].line.replace("\\\n", ""))[2:]
    return Example(commands[:place], flags, commands[place + 1 :])


class Copy:
    """A user's copy of the examples, in which commands run as at the top of the repository."""

    def __init__(self, root: Path) -> None:
        self.root = root
        shutil.copytree(EXAMPLES, root / "examples", ignore=MADE)

    def require(self, commands: Iterable[Command], tidegate: Tidegate | None = None) -> None:
        """Run them in order; AssertionError unless each prints what it should."""
        for command in commands:
            done = self.run(command.line, tidegate)
            assert done.returncode == 0, f"{command.line}\n{done.stdout}\n{done.stderr}"
            require_same(done.stdout, command.output)

    def run(self, line: str, tidegate: Tidegate | None) -> subprocess.CompletedProcess[str]:
        ports = {"localhost:8000": tidegate.address("http")} if tidegate else {}
        # Networks this small are trained in a fraction of the CPU by one thread, as others spin while they wait for it.
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
        if tidegate is not None:
            environment["TIDEGATE_STATE_DIR"] = str(tidegate.state_dir)
        return subprocess.run(
            ["bash", "-c", replaced(line, {".venv/bin/": "", **ports})],
            capture_output=True,
            text=True,
            timeout=3 * LONG_S,  # the fleet's loads follow one another
            cwd=self.root,
            env=environment,
        )

    def start(self, state_dir: Path, flags: Iterable[str]) -> Tidegate:
        """The server; clients among the examples then call it."""
        here = {"$PWD/examples": "examples", "examples/": f"{self.root}/examples/"}
        running = servers.start(state_dir, *(replaced(flag, here) for flag in flags))
        ports = {"localhost:8000": running.address("http"), "localhost:8001": running.address("grpc")}
        for program in self.root.glob("examples/*/*.py"):
            program.write_text(replaced(program.read_text(), ports))
        return running


def replaced(text: str, by: Mapping[str, str]) -> str:
    for old, new in by.items():
        text = text.replace(old, new)
    return text


@contextmanager
def ending(running: Tidegate) -> Iterator[Tidegate]:
    below = descendants(running.process.pid)
    try:
        yield running
    finally:
        status = running.stop()
    assert status == 0, running.said()
    assert not living(below), "processes outlived tidegate"


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    return Copy(tmp_path_factory.mktemp("copy"))


@pytest.fixture(scope="module")
def prepared(copy: Copy) -> dict[str, AssertionError | None]:
    """For each example, what was wrong with the commands before its server starts."""

    def prepare(name: str) -> AssertionError | None:
        try:
            copy.require(example(name).before)
        except AssertionError as exc:
            return exc
        return None

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(SHARING, pool.map(prepare, SHARING), strict=True))


@pytest.fixture(scope="module")
def shared(copy: Copy, prepared: dict[str, AssertionError | None], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tidegate]:
    """One server with the flags of all examples that could be prepared, and models whose preparation was forgotten."""
    flags = [flag for name, wrong in prepared.items() if wrong is None for flag in example(name).flags]
    forgotten = ["--model-repository", str(unprepared(copy.root))]
    flags += [*PROJECTS_OWN, COMPLETE, "--load", "text_embedding", *forgotten]
    with ending(copy.start(tmp_path_factory.mktemp("state"), flags)) as running:
        yield running


UNPREPARED = {
    "fahrenheit": ("own_onnx", "has no version folder: what it is loaded from goes into"),
    "iris": ("scikit_learn", "estimator.joblib is missing beside model.py: run train.py"),
    "sine": ("pytorch", "weights.pt is missing beside model.py: run train.py"),
    "readable_number": ("python_model", "No module named 'humanize'"),
    "review_words": ("ensemble", "vocabulary.txt is missing beside model.py: run make_model.py"),
}
"""Models of the examples, each with its example and why it cannot be loaded."""


def unprepared(root: Path) -> Path:
    """A repository of them under names of their own."""
    repository = root / "unprepared"
    for model, (name, _) in UNPREPARED.items():
        shutil.copytree(EXAMPLES / name / "models" / model, repository / f"unprepared_{model}", ignore=MADE)
    return repository


@pytest.mark.parametrize("name", SHARING)
def test_an_examples_commands_print_what_its_readme_says(
    copy: Copy, prepared: dict[str, AssertionError | None], shared: Tidegate, name: str
) -> None:
    if (wrong := prepared[name]) is not None:
        if NO_INDEX in str(wrong):
            pytest.skip(f"its packages cannot be had here: {wrong}")
        raise wrong
    commands = example(name).after
    assert commands
    copy.require(commands, shared)


@pytest.mark.parametrize("model", UNPREPARED)
def test_a_model_that_was_not_prepared_says_what_is_missing(shared: Tidegate, model: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        AdminClient(shared.endpoints["admin"]).load(f"unprepared_{model}")
    assert UNPREPARED[model][1] in str(caught.value)


def test_the_python_model_has_its_packages_from_its_own_environment() -> None:
    assert find_spec("humanize") is None, "choose a package that Tidegate does not have"


def test_the_fleet_serves_more_models_than_fit(tmp_path: Path) -> None:
    fleet, commands = Copy(tmp_path), example(FLEET)
    fleet.require(commands.before)
    with ending(fleet.start(tmp_path / "state", commands.flags)) as running:
        fleet.require(commands.after, running)
        shown = run_cli("fleet", "--state-dir", str(running.state_dir))
        assert shown.stdout.count("50 MiB") == 3, shown
        assert "evicted" in shown.stdout


@pytest.mark.parametrize("name", READMES)
def test_a_readme_is_short(name: str) -> None:
    lines = READMES[name].splitlines()
    assert len(lines) <= 40
    # What a program prints is as long as it is.
    assert [line for line in lines if len(line) > 110 and not line.startswith("{")] == []


def test_every_example_is_listed() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    assert [name for name in READMES if f"[{name}]({name}/)" not in listed] == []
    assert {path.name for path in EXAMPLES.iterdir() if path.is_dir()} == READMES.keys()
