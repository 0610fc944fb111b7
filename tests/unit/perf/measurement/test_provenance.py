"""A result names its commit, and is marked where anything that could be measured differed from it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from perf.measurement.provenance import CLEAN, UNKNOWN, provenance, told, tree_state


def git(tree: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=x", "-c", "user.email=x@example.com", *arguments]
    return subprocess.run(command, cwd=tree, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "perf" / "results").mkdir(parents=True)
    for name in ("code.py", "README.md", "perf/README.md", "perf/results/a.json", ".gitignore"):
        (tmp_path / name).write_text("/built\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "all")
    return tmp_path


def test_a_commit(tree: Path) -> None:
    measured = provenance(tree)
    assert measured["commit"] == git(tree, "rev-parse", "--short=10", "HEAD")
    assert measured["tree"] == CLEAN


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("perf/results/a.json", id="what the scenario before it wrote"),
        pytest.param("perf/results/b.json", id="a new result"),
        pytest.param("README.md", id="a document"),
        pytest.param("perf/README.md", id="a document below"),
        pytest.param("built", id="what git ignores"),
    ],
)
def test_what_changes_nothing_that_is_measured(tree: Path, path: str) -> None:
    (tree / path).write_text("changed\n")
    assert tree_state(tree) == CLEAN


@pytest.mark.parametrize("path", [pytest.param("code.py", id="changed"), pytest.param("new.py", id="not in git")])
def test_what_may_change_it(tree: Path, path: str) -> None:
    (tree / path).write_text("changed\n")
    assert tree_state(tree) == f"changed: {path}"


def test_many_changes_are_counted(tree: Path) -> None:
    for number in range(9):
        (tree / f"new{number}.py").touch()
    assert tree_state(tree).endswith("new4.py and 4 more")


def test_without_git_nobody_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert (provenance(tmp_path)["commit"], provenance(tmp_path)["tree"]) == (UNKNOWN, UNKNOWN)


def test_a_marked_result_is_told_as_one(tree: Path) -> None:
    measured = {**provenance(tree), "command": "python -m perf.x", "took_s": 60.0}
    assert "uncommitted" not in told(measured)
    (tree / "code.py").write_text("changed\n")
    assert "**with uncommitted changes** (changed: code.py)" in told({**measured, **provenance(tree)})


def test_the_build_of_python_is_named() -> None:
    measured = provenance()
    assert measured["python"].keys() == {"version", "compiler", "built", "optimised", "link_time_optimised"}
    assert measured["machine"]["cpus"] >= 1
    assert measured["machine"]["memory_gib"] > 0
